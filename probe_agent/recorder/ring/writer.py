"""Writer of a table's ring.

Runs on the training thread once per step with the rows of that step, and on the recorder's thread when a step takes
long. One `struct` call packs a whole batch. Measured cost: docs/overhead.md.
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
from contextlib import suppress

from .layout import COUNTERS, COUNTERS_AT, FIXED, MAGIC, SCHEMA_AT, STRING_LENGTH, VERSION
from .table import NULL_FLOAT, NULL_INT, Table

__all__ = ["RingWriter", "close_half_made"]

#: Indexes of the counters.
_RESERVED, _HEAD, _STRINGS_USED = range(3)

#: Rings that are being made.
_half_made: list[RingWriter] = []


class RingWriter:
    """The only writer of one ring."""

    def __init__(
        self,
        path: str,
        table: type[Table],
        coordinates: dict[str, object],
        *,
        capacity: int = 0,
        strings_bytes: int = 1 << 18,
    ) -> None:
        """Make the file at `path`, mode 0600. Raises OSError if there is no space for it, or it exists."""
        if os.path.lexists(path):  # no other process makes files here, so the check need not be atomic
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
        new = path + ".new"  # readers see a complete ring or none
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Reserve the blocks now: a full /dev/shm must be an error here, not a SIGBUS in training.
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
            # One store of 8 bytes each. `pack_into` writes zeros first, and a reader would see them.
            self._counters = memoryview(self._map)[COUNTERS_AT : COUNTERS_AT + COUNTERS.size].cast("Q")
            _half_made.append(self)
        except BaseException:
            os.unlink(new)
            raise
        finally:
            os.close(descriptor)
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
        _half_made.remove(self)

    @property
    def num_rows(self) -> int:
        """Rows written since the ring was made, overwritten ones included."""
        return self._head

    def append(self, rows: Sequence[tuple[object, ...]]) -> None:
        """Write rows of plain values, oldest first: text as `str`, NULL as None. For rare rows."""
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
        """Write encoded rows, oldest first: text as its number, NULL as `NULL_FLOAT` or `NULL_INT`.

        If there are more rows than the ring holds, only the newest are kept.
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

    def newest(self, num_rows: int) -> list[list[object]]:
        """Return the newest rows as plain values, oldest first. Takes no lock, like any other reader."""
        head = self._head
        numbers = range(max(0, head - min(num_rows, self._capacity)), head)
        texts = {number: text for text, number in list(self._numbers.items())}
        nulls = dict(self._nulls)
        rows = []
        for number in numbers:
            at = self._rows_at + number % self._capacity * self._row.size
            values: list[object] = list(self._row.unpack_from(self._map, at))
            for place in self._text_at:
                values[place] = texts.get(values[place])  # type: ignore[call-overload]  # an int
            for place, null in nulls.items():
                values[place] = None if values[place] == null else values[place]
            rows.append(values)
        oldest_whole = self._counters[_RESERVED] - self._capacity
        return [row for number, row in zip(numbers, rows) if number >= oldest_whole]

    def text_number(self, text: str | None) -> int:
        """Return the number that stands for `text` in this ring; 0 (NULL) once the string area is full."""
        number = self._numbers.get(text)
        if number is not None or text is None:
            return number or 0
        data = text.encode("utf-8", "replace")
        with self._lock:
            start = self._strings_at + self._strings_used
            end = start + STRING_LENGTH.size + len(data)
            if end > self._strings_end:
                self._strings_end = start  # full for ever: a later, shorter text must not get this number
                return 0
            self._map[start:end] = STRING_LENGTH.pack(len(data)) + data
            self._strings_used = end - self._strings_at
            number = self._numbers[text] = len(self._numbers)
            self._counters[_STRINGS_USED] = self._strings_used
        return number

    def close(self) -> None:
        """Close the mapping; the file stays with the target's folder. A later write raises ValueError.

        Takes no lock: a forked child closes too, and a thread that it does not have may hold the lock.
        """
        self._counters.release()
        self._map.close()


def close_half_made(folder: str) -> None:
    """Close, in a forked child, a ring in `folder` that another thread was making at the fork: that thread alone knew
    of it, and is not there."""
    for writer in _half_made:
        writer.close()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the listing itself
            if os.path.dirname(os.readlink(f"/proc/self/fd/{number}")) == folder:
                os.close(int(number))
