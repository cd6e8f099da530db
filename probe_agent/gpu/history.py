"""Samples of the GPUs in the last hour, in memory of a fixed size: 0.6 MiB a GPU.

`sampling` is a thread of the host server that looks once a second; without it, `readings` looks once. The first look
takes over what the driver has kept of the load.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import nan
from time import monotonic, time_ns

from probe_agent.track import Array, Track, sampling

from .nvml import NUMBERS, Gpu, Nvml, NvmlUnavailable

__all__ = ["INTERVAL_S", "KEPT", "History", "Reading"]

INTERVAL_S = 1.0
KEPT = 4_096
#: A look older than this is too old to be shown as current.
STALE_S = 2 * INTERVAL_S
_UNKNOWN = (nan,) * (len(NUMBERS) - 1)


@dataclass(frozen=True)
class Reading:
    """One GPU: what it is, its users with the MiB that each has there, and its samples. `numbers` has a column for
    each of `nvml.NUMBERS`."""

    gpu: Gpu
    users: Mapping[int, float]
    times: Array
    numbers: Array


class History:
    """Samples of this host's GPUs. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nvml: Nvml | None = None
        self._tracks: dict[str, Track] = {}
        self._looked = float("-inf")

    def readings(self) -> list[Reading]:
        """Return every GPU with its samples, a current one among them. Raises NvmlUnavailable."""
        with self._lock:
            nvml = self._open()
            if monotonic() - self._looked > STALE_S:
                self._look(nvml)
            return [Reading(gpu, nvml.users(gpu), *self._tracks[gpu.uuid].read()) for gpu in nvml.gpus]

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Look once a second inside the block. Without NVML, nothing runs."""
        try:
            with sampling("probe-gpu", INTERVAL_S, self._sample):
                yield
        finally:
            self.close()

    def close(self) -> None:
        """Shut NVML down; it is opened again on demand."""
        with self._lock:
            nvml, self._nvml = self._nvml, None
            if nvml is not None:
                nvml.close()

    def _sample(self) -> bool:
        with self._lock:
            try:
                self._look(self._open())
            except NvmlUnavailable:
                return False
        return True

    def _open(self) -> Nvml:
        if self._nvml is None:
            self._nvml = Nvml()
        return self._nvml

    def _look(self, nvml: Nvml) -> None:
        self._looked = monotonic()
        nvml.note_xids()
        for gpu in nvml.gpus:
            track = self._tracks.get(gpu.uuid)
            if track is None:  # so that the first question has the load of some seconds to judge by
                track = self._tracks[gpu.uuid] = Track(len(NUMBERS), KEPT)
                for time, load in nvml.load_before(gpu):
                    track.add(time, (load, *_UNKNOWN))
            track.add(time_ns() // 1000, nvml.look(gpu))
