"""Writes rows into a table's ring.

Runs on the training thread once a step with that step's rows, and on our own thread when a step takes long.
One `struct` call packs a whole batch. Measured cost: docs/overhead.md.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import socket
import struct
from _thread import allocate_lock
from collections.abc import Sequence

from .layout import COUNTERS, COUNTERS_AT, FIXED, MAGIC, SCHEMA_AT, STRING_LENGTH, VERSION
from .table import NULL_FLOAT, NULL_INT, Table

__all__ = ["RingWriter"]

#: Where the counters are among each other.
_RESERVED, _HEAD, _STRINGS_USED = range(3)


class RingWriter:
    """The writing end of one ring; there is one in the whole system for each table of a target."""

    def __init__(
        self,
        path: str,
        table: type[Table],
        coordinates: dict[str, object],
        *,
        capacity: int = 0,
        strings_bytes: int = 1 << 18,
    ) -> None:
        """Make the file at `path`, mode 0600. Raises OSError when there is no room for it, or a file already."""
        if os.path.lexists(path):  # nobody else makes files here: no need to ask the kernel for both at once
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._row = table.row_struct()
        self._codes = self._row.format.lstrip("<")
        self._text_at = [i for i, column in enumerate(table.columns) if column.kind == "text"]
        nulls = {"float": NULL_FLOAT, "int or null": NULL_INT}
        self._nulls = [(i, nulls[column.kind]) for i, column in enumerate(table.columns) if column.kind in nulls]
        self._capacity = capacity or table.capacity
        self._lock = allocate_lock()
        self._numbers: dict[str | None, int] = {None: 0}
        self._strings_used = 0
        self._head = 0
        schema = json.dumps(
            {
                "table": table.name,
                "doc": table.doc,
                "columns": [column._asdict() for column in table.columns],
                "coordinates": {"host": socket.gethostname(), **coordinates},
            }
        ).encode()
        self._strings_at = SCHEMA_AT + -(-len(schema) // 4096) * 4096
        self._rows_at = self._strings_end = self._strings_at + strings_bytes
        size = self._rows_at + self._capacity * self._row.size
        new = path + ".new"  # readers see a ring that is whole, or none
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Reserve the blocks now: a full /dev/shm must be an error here, not a SIGBUS in training.
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
        except BaseException:
            os.unlink(new)
            raise
        finally:
            os.close(descriptor)
        # One store of 8 bytes each. `pack_into` writes zeros first, and a reader would see them.
        self._counters = memoryview(self._map)[COUNTERS_AT : COUNTERS_AT + COUNTERS.size].cast("Q")
        self._map[SCHEMA_AT : SCHEMA_AT + len(schema)] = schema
        FIXED.pack_into(
            self._map,
            0,
            MAGIC,
            VERSION,
            self._row.size,
            self._capacity,
            len(schema),
            self._strings_at,
            strings_bytes,
            self._rows_at,
        )
        os.rename(new, path)

    @property
    def num_rows(self) -> int:
        """Rows written since the ring was made, overwritten ones included."""
        return self._head

    def append(self, rows: Sequence[tuple[object, ...]]) -> None:
        """Write rows of plain values, oldest first: text as `str`, NULL as None. For rows that come seldom."""
        encoded = []
        for row in rows:
            values = list(row)
            for at in self._text_at:
                text = values[at]
                values[at] = self.text_number(None if text is None else str(text))
            for at, null in self._nulls:
                if values[at] is None:
                    values[at] = null
            encoded.append(tuple(values))
        self.write(encoded)

    def write(self, rows: Sequence[tuple[object, ...]]) -> None:
        """Write rows that are encoded already: text as its number, NULL as `NULL_FLOAT` or `NULL_INT`; oldest first.

        Of more rows than the ring holds only the newest are kept.
        """
        with self._lock:
            head = self._head
            end = head + len(rows)
            self._counters[_RESERVED] = end
            first = max(head, end - self._capacity)
            rows = rows[first - head :]
            while rows:
                slot = first % self._capacity
                batch = rows[: self._capacity - slot]
                at = self._rows_at + slot * self._row.size
                if len(batch) == 1:
                    self._row.pack_into(self._map, at, *batch[0])
                else:
                    flat: list[object] = []
                    for row in batch:
                        flat += row
                    struct.pack_into("<" + self._codes * len(batch), self._map, at, *flat)
                first += len(batch)
                rows = rows[len(batch) :]
            self._head = end
            self._counters[_HEAD] = end

    def text_number(self, text: str | None) -> int:
        """The number that stands for `text` in this ring; 0 (NULL) once the string area is full."""
        number = self._numbers.get(text)
        if number is not None or text is None:
            return number or 0
        data = text.encode("utf-8", "replace")
        with self._lock:
            start = self._strings_at + self._strings_used
            end = start + STRING_LENGTH.size + len(data)
            if end > self._strings_end:
                self._strings_end = start  # full for good: a later, shorter text must not take this number
                return 0
            self._map[start:end] = STRING_LENGTH.pack(len(data)) + data
            self._strings_used = end - self._strings_at
            number = self._numbers[text] = len(self._numbers)
            self._counters[_STRINGS_USED] = self._strings_used
        return number

    def close(self) -> None:
        """Give the mapping back; the file stays until the target's folder goes. A later write raises ValueError.

        Takes no lock: a forked child closes too, and the lock may be held by a thread it does not have.
        """
        self._counters.release()
        self._map.close()
