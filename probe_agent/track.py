"""Samples of one thing over time, in memory of a fixed size, and the thread that takes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["Array", "Track", "sampling"]

Array = np.ndarray[Any, Any]  # Any: numpy's shape


class Track:
    """Samples of one thing: times in microseconds since 1970, and a row of numbers each."""

    def __init__(self, num_columns: int, kept: int) -> None:
        self._times = np.zeros(kept, "<i8")
        self._numbers = np.full((kept, num_columns), np.nan)
        self._count = 0

    def add(self, time: int, numbers: tuple[float, ...]) -> None:
        """Add a sample; it replaces the oldest one if there is no room."""
        at = self._count % len(self._times)
        self._times[at] = time
        self._numbers[at] = numbers
        self._count += 1

    def read(self) -> tuple[Array, Array]:
        """Return a copy of times and numbers, oldest first."""
        kept = min(self._count, len(self._times))
        order = np.arange(self._count - kept, self._count) % len(self._times)
        return self._times[order], self._numbers[order]


@contextmanager
def sampling(name: str, every_s: float, look: Callable[[], bool], *, at_once: bool = False) -> Iterator[None]:
    """Call `look` every so often on a thread of its own inside the block, until it returns False."""
    stop = threading.Event()

    def sample() -> None:
        if at_once and not look():
            return
        while not stop.wait(every_s) and look():
            pass

    thread = threading.Thread(target=sample, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
