"""Rows on their way to a ring: hooks append tuples, the ring gets them in batches.

The ring's file is made on our own thread, since reserving tens of MiB takes milliseconds; until then rows wait
here. Appending is one list append on the training thread.
"""

from __future__ import annotations

from _thread import allocate_lock

from .table import Table
from .writer import RingWriter

__all__ = ["RowBuffer"]

#: Rows that may wait for a ring that is not there yet; the oldest go first.
MAX_WAITING = 50_000


class RowBuffer:
    """The way into one table. `rows.append` takes encoded rows: text by `number()`, NULL as a ring has it."""

    def __init__(self, table: type[Table]) -> None:
        self.table = table
        self.rows: list[tuple[object, ...]] = []
        self.writer: RingWriter | None = None
        self._numbers: dict[str | None, int] = {None: 0}
        self._new_texts: list[str] = []
        self._flushing = allocate_lock()

    def number(self, text: str | None) -> int:
        """The number that stands for `text` in this table's rows."""
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self._numbers)
            self._new_texts.append(str(text))
        return number

    def flush(self) -> None:
        """Hand what has come so far to the ring, if it is there; one row or a whole step's.

        Nothing is done while another thread does it, or a signal handler has come in between.
        """
        if not self._flushing.acquire(False):
            return
        try:
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
        """Give the ring's mapping back."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()
