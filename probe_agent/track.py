"""Samples of one thing over time, in memory of a fixed size: the newest ones are kept."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Array", "Track"]

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
