"""Buffer between the hooks, which append tuples, and a ring, which gets them in batches.

The recorder's thread makes the ring's file, since reserving tens of MiB takes milliseconds; until then rows wait here.
On the training thread a row costs one list append.
"""

from __future__ import annotations

from _thread import allocate_lock
from typing import Callable

from .table import Table
from .writer import RingWriter

__all__ = ["RowBuffer"]

#: Rows that may wait for a ring that does not exist yet; beyond this the oldest are dropped.
MAX_WAITING = 50_000


class RowBuffer:
    """Buffer of one table. `rows.append` takes encoded rows: text as its `number()`, NULL as in a ring."""

    def __init__(self, table: type[Table]) -> None:
        self.table = table
        self.rows: list[tuple[object, ...]] = []
        self.writer: RingWriter | None = None
        self._numbers: dict[str | None, int] = {None: 0}
        self._new_texts: list[str] = []
        self._flushing = allocate_lock()

    @property
    def may_be_half_made(self) -> bool:
        """True while a thread may be making the ring."""
        return self.writer is None and self._flushing.locked()

    def number(self, text: str | None) -> int:
        """Return the number that stands for `text` in this table's rows."""
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self._numbers)
            self._new_texts.append(str(text))
        return number

    def flush(self, make: Callable[[RowBuffer], RingWriter | None] | None = None) -> None:
        """Write the rows so far to the ring, if it exists or `make` makes it.

        Does nothing while another thread flushes, or when a signal handler has interrupted a flush.
        """
        if not self._flushing.acquire(False):
            return
        try:
            if make is not None and self.writer is None:
                self.writer = make(self)
            self._flush()
        finally:
            self._flushing.release()

    def _flush(self) -> None:
        rows, writer = self.rows, self.writer
        if writer is None:
            if len(rows) > MAX_WAITING:
                del rows[: len(rows) - MAX_WAITING]
            return
        while self._new_texts:
            writer.text_number(self._new_texts.pop(0))
        batch = rows[:]
        if batch:
            del rows[: len(batch)]  # appended meanwhile: stays
            writer.write(batch)

    def close(self) -> None:
        """Close the ring's mapping."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()
