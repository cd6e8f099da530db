"""Rates of the host's counters in the last hour: network, pressure and disks, in memory of a fixed size.

`sampling` is a thread of the host server that looks every five seconds; without it, `tracks` looks twice. Nothing is
asked of a target: only files of /proc and /sys are read. Cost: docs/overhead.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from time import monotonic, sleep, time_ns

from probe_agent.procfs import Process
from probe_agent.track import Array, Track, sampling

from .disks import disks
from .network import network
from .pressure import of_group, of_host
from .sample import Sample

__all__ = ["INTERVAL_S", "KEPT", "History"]

INTERVAL_S = 5.0
KEPT = 720
#: Shortest time over which a rate is made.
SHORTEST_S = 0.5
#: Control groups whose processes have ended are forgotten beyond this number.
MAX_GROUPS = 64

Samples = Mapping[str, Sample]


class History:
    """Tracks of rates by topic and name. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids: dict[int, None] = {}
        self._topics: dict[str, Callable[[], Samples]] = {
            "network": network,
            "pressure": self._pressure,
            "disks": disks,
        }
        self._last: dict[str, tuple[float, Samples]] = {}
        self._tracks: dict[str, dict[str, Track]] = {topic: {} for topic in self._topics}

    def tracks(self, topic: str, *, also: Collection[str] = ()) -> dict[str, tuple[Array, Array]]:
        """Return times and rates by name, with a rate up to now; the names in `also` are waited for. Raises OSError
        where the kernel does not tell."""
        with self._lock:
            self._look(topic)
            tracks = self._tracks[topic]
            if not tracks or not tracks.keys() >= set(also):
                sleep(SHORTEST_S)
                self._look(topic)
                sleep(SHORTEST_S if not tracks.keys() >= set(also) else 0.0)
                self._look(topic)
            return {name: track.read() for name, track in tracks.items()}

    def group_of(self, pid: int) -> str | None:
        """Return the name of the control group of a process in the topic `pressure`, and sample it from now on."""
        self._pids[pid] = None
        while len(self._pids) > MAX_GROUPS:
            self._pids.pop(next(iter(self._pids)))
        with suppress(OSError):
            found = of_group(Process(pid).read("cgroup"))
            return None if found is None else found[0]
        return None

    def sampling(self) -> AbstractContextManager[None]:
        """Look every INTERVAL_S inside the block."""
        return sampling("probe-host", INTERVAL_S, self._sample, at_once=True)

    def _sample(self) -> bool:
        for topic in self._topics:
            with self._lock, suppress(OSError):  # whoever asks gets the error
                self._look(topic)
        return True

    def _look(self, topic: str) -> None:
        now = monotonic()
        then, earlier = self._last.get(topic, (float("-inf"), {}))
        if now - then < SHORTEST_S:
            return
        samples = self._topics[topic]()
        self._last[topic] = (now, samples)
        for name, sample in samples.items():
            if name in earlier:
                rates = sample.since(earlier[name], now - then)
                self._tracks[topic].setdefault(name, Track(len(rates), KEPT)).add(time_ns() // 1000, rates)

    def _pressure(self) -> Samples:
        found = {"host": of_host()}
        for pid in list(self._pids):
            try:
                group = of_group(Process(pid).read("cgroup"))
            except OSError:
                self._pids.pop(pid, None)
                continue
            if group is not None:
                found.setdefault(*group)
        return found
