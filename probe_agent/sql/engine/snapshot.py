"""Snapshot of one ring: its rows at one moment, as NumPy columns that lie in the ring itself.

Runs in a query worker. Copying 1,000,000 rows of 80 bytes first would cost 40 ms, scanning
them where they lie costs 9 ms. So the writer may overwrite a row while it is read: the oldest sixteenth of a full
ring is left out as a margin, and `overtaken` says afterwards whether that was enough. If not, `copied` is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from probe_agent.recorder.ring.table import Column
from probe_agent.sql.tables.live_table import Columns
from probe_agent.targets import Ring, RingError

__all__ = ["Snapshot"]

_DTYPES = {"float": "<f8", "int": "<i8", "int or null": "<i8", "bool": "?", "text": "<u4", "time": "<i8"}
_MARGIN = 16
#: How often a ring that was overwritten as a whole is copied again.
_COPIES = 10


class Snapshot:
    """Rows `first` to `head` of a ring, which it keeps mapped as long as it lives."""

    def __init__(self, ring: Ring, segments: list[np.ndarray[Any, Any]], first: int, head: int) -> None:
        self.ring = ring
        self.first = first
        self.head = head
        self._segments = segments
        #: Taken after the head: every row has its strings.
        self.strings: list[str] = list(ring.strings)

    @classmethod
    def in_place(cls, ring: Ring) -> Snapshot:
        """Return the rows where they lie; check `overtaken` after reading them."""
        head = ring.head
        first = max(0, head - ring.capacity + ring.capacity // _MARGIN)
        rows = _rows(ring)
        begin, end = first % ring.capacity, head % ring.capacity
        if head == first:
            parts = [rows[:0]]
        elif begin < end:
            parts = [rows[begin:end]]
        else:
            parts = [rows[begin:], rows[:end]]
        return cls(ring, [part for part in parts if len(part)] or [rows[:0]], first, head)

    @classmethod
    def copied(cls, ring: Ring) -> Snapshot:
        """Return a copy of all complete rows. Raises RingError if they are overwritten faster than they are copied."""
        for _ in range(_COPIES):
            head = ring.head
            copy = _rows(ring)[: min(head, ring.capacity)].copy()
            first = max(0, min(head, ring.reserved - ring.capacity))
            if first < head or not head:
                break
        else:
            raise RingError("it is overwritten faster than it can be copied")
        numbers = np.arange(first, head)
        return cls(ring, [copy[numbers % ring.capacity]], first, head)

    def overtaken(self) -> bool:
        """Return whether the writer has begun to overwrite rows of this snapshot."""
        return self.first < self.head and self.ring.reserved - self.ring.capacity > self.first

    def segments(self) -> list[Columns]:
        """Return the columns, oldest rows first; text as numbers of `strings`."""
        return [
            {column.name: _shown(part[column.name], column) for column in self.ring.columns} for part in self._segments
        ]


def _rows(ring: Ring) -> np.ndarray[Any, Any]:
    return np.frombuffer(ring.map, _row_dtype(ring.columns, ring.row.size), ring.capacity, ring.rows_at)


@lru_cache(maxsize=256)
def _row_dtype(columns: tuple[Column, ...], size: int) -> np.dtype[Any]:
    # align=True puts every value where `row_struct` does.
    aligned = np.dtype([(column.name, _DTYPES[column.kind]) for column in columns], align=True)
    fields = [aligned.fields[column.name] for column in columns] if aligned.fields else []
    return np.dtype(
        {
            "names": [column.name for column in columns],
            "formats": [field[0] for field in fields],
            "offsets": [field[1] for field in fields],
            "itemsize": size,
        }
    )


def _shown(values: np.ndarray[Any, Any], column: Column) -> np.ndarray[Any, Any]:
    return values.view("datetime64[us]") if column.kind == "time" else values
