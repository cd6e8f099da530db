"""Rings, mapped for reading: schema, counters, strings.

Runs beside the target. Another process has written the file, so it is checked before it is used; nothing here writes
to it.
"""

from __future__ import annotations

import json
import mmap
import os
import stat
import threading
from typing import Any

from probe_agent.recorder.ring.layout import COUNTERS, COUNTERS_AT, FIXED, MAGIC, SCHEMA_AT, STRING_LENGTH, VERSION
from probe_agent.recorder.ring.table import NULL_FLOAT, NULL_INT, Column, row_struct
from probe_agent.untrusted_files import opened

__all__ = ["Ring", "RingError"]

#: The value that stands for NULL, by kind of column.
_NULLS = {"float": NULL_FLOAT, "int or null": NULL_INT}


class RingError(Exception):
    """A file that is no ring, or that cannot be read; says why."""


class Ring:
    """One ring, mapped as long as the object lives."""

    def __init__(self, path: str) -> None:
        """Map the file at `path`. Raises RingError, or FileNotFoundError."""
        self.path = path
        with opened(path) as descriptor:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size < SCHEMA_AT:
                raise RingError("not a ring: too short" if stat.S_ISREG(status.st_mode) else "not a file")
            self.file_id = (status.st_dev, status.st_ino)
            self.map = mmap.mmap(descriptor, status.st_size, prot=mmap.PROT_READ)
        self._read_header(status.st_size)
        # Each is loaded as 8 bytes at once, as the writer stores it.
        self._counters = memoryview(self.map)[COUNTERS_AT : COUNTERS_AT + COUNTERS.size].cast("Q")
        self._strings: list[str] = []
        self._strings_read = 0
        self._lock = threading.Lock()

    def _read_header(self, size: int) -> None:
        magic, version, row_size, capacity, schema_size, strings_at, strings_size, rows_at = FIXED.unpack_from(self.map)
        if magic != MAGIC:
            raise RingError("not a ring, or not complete: no magic number")
        if version != VERSION:
            raise RingError(f"written by another version of the recorder (layout {version}, this reads {VERSION})")
        if not capacity or SCHEMA_AT + schema_size > strings_at or strings_at + strings_size > rows_at:
            raise RingError("damaged header")
        if rows_at + capacity * row_size > size:
            raise RingError(f"cut short: {size:,} bytes of {rows_at + capacity * row_size:,}")
        try:
            schema: dict[str, Any] = json.loads(self.map[SCHEMA_AT : SCHEMA_AT + schema_size])
            self.table = str(schema["table"])
            self.doc = str(schema["doc"])
            self.columns = tuple(Column(**column) for column in schema["columns"])
            self.coordinates: dict[str, object] = dict(schema["coordinates"])
            self.row = row_struct(self.columns)
        except (ValueError, KeyError, TypeError) as error:
            raise RingError(f"damaged description: {error}") from None
        if self.row.size != row_size:
            raise RingError(f"its rows are {row_size} bytes, its columns make {self.row.size}")
        self.capacity, self.rows_at = int(capacity), int(rows_at)
        self._strings_at, self._strings_size = strings_at, strings_size

    @property
    def reserved(self) -> int:
        """Number of rows that the writer has begun: slots of rows below `reserved - capacity` may hold newer ones."""
        return self._counters[0]

    @property
    def head(self) -> int:
        """Number of rows that are complete, overwritten ones included."""
        return self._counters[1]

    @property
    def strings(self) -> list[str]:
        """Strings by number, from 1: number n is at index n - 1. Read `head` first. Any thread may ask."""
        with self._lock:
            self._read_strings()
            return self._strings

    def _read_strings(self) -> None:
        used = min(self._counters[2], self._strings_size)
        while self._strings_read + STRING_LENGTH.size <= used:
            start = self._strings_at + self._strings_read + STRING_LENGTH.size
            (length,) = STRING_LENGTH.unpack_from(self.map, start - STRING_LENGTH.size)
            if self._strings_read + STRING_LENGTH.size + length > used:
                raise RingError("damaged strings")
            self._strings.append(self.map[start : start + length].decode("utf-8", "replace"))
            self._strings_read += STRING_LENGTH.size + length

    def newest(self) -> dict[str, object] | None:
        """Return the newest row; None if there is none, or it was overwritten meanwhile."""
        return self.row_number(self.head - 1)

    def row_number(self, number: int) -> dict[str, object] | None:
        """Return row `number`, counted from the first ever written; None if it is not there."""
        head = self.head
        if not 0 <= number < head:
            return None
        values = self.row.unpack_from(self.map, self.rows_at + number % self.capacity * self.row.size)
        strings = self.strings
        if self.reserved - self.capacity > number:
            return None
        row: dict[str, object] = {}
        for column, value in zip(self.columns, values, strict=True):
            if column.kind == "text":
                row[column.name] = strings[value - 1] if 0 < value <= len(strings) else None
            else:
                row[column.name] = None if value == _NULLS.get(column.kind) else value
        return row
