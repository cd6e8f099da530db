"""The samples of the host that its tables share, and their form as columns."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np

from probe_agent.host import History
from probe_agent.targets import Target
from probe_agent.track import Array

from .live_table import Columns

__all__ = ["HISTORY", "coordinates", "rates", "sample_host_counters", "texts", "with_rates"]

HISTORY = History()


def sample_host_counters() -> AbstractContextManager[None]:
    """Sample network, pressure and disks every five seconds inside the block."""
    return HISTORY.sampling()


def coordinates(target: Target | None) -> dict[str, object]:
    """Return the coordinates of rows of a target, or of the host."""
    host = socket.gethostname()
    if target is None:
        return {"host": host}
    return {"host": target.identity.get("host", host), "pid": target.pid, **target.place_in_job}


def rates(names: Sequence[str], track: tuple[Array, Array]) -> dict[str, Array]:
    """Return the columns of a track by name, with the time of each sample as `ts`."""
    times, numbers = track
    return {"ts": times.view("datetime64[us]"), **dict(zip(names, numbers.T, strict=True))}


def with_rates(
    topic: str, names: Sequence[str], *, also: Sequence[str] = ()
) -> Iterator[tuple[str, Mapping[str, Array]]]:
    """Yield each thing of a topic with its columns. Raises OSError where the kernel does not tell."""
    for name, track in HISTORY.tracks(topic, also=also).items():
        yield name, rates(names, track)


def texts(values: Mapping[str, Sequence[object]]) -> Columns:
    """Return columns of text, truth or whole numbers, in which None is NULL."""
    made: Columns = {}
    for name, column in values.items():
        made[name] = np.empty(len(column), object)
        made[name][:] = column
    return made
