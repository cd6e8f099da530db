"""Failures of the recorder inside the target: rows of `probe.errors`, never an exception in the job.

Runs on the thread that failed. The third failure of a source removes it.
"""

from __future__ import annotations

import os
import traceback
from collections import Counter
from collections import Counter as CounterType
from time import time_ns

from ..ring.buffer import RowBuffer
from ..ring.table import Column, Table

__all__ = ["Errors", "Failures"]

MAX_FAILURES = 3
_STDLIB = os.path.dirname(os.__file__) + os.sep
#: Rows per source; a failure at every step must not flood the table.
MAX_ROWS = 20


class Errors(Table):
    name = "probe.errors"
    doc = "Failures of Probe itself inside the target."
    capacity = 1_024
    columns = (
        Column("ts", "time", "UTC", "time of the failure"),
        Column("source", "text", "", "part of the recorder that failed"),
        Column("message", "text", "", "the exception"),
        Column("traceback", "text", "", "traceback of the exception"),
        Column("count", "int", "", "failures of this source so far; the third removes it"),
    )


class Failures:
    """Count and record failures by source."""

    def __init__(self, buffer: RowBuffer) -> None:
        self._buffer = buffer
        self._counts: CounterType[str] = Counter()
        #: Sources that failed too often and wait for the recorder's thread to stop them.
        self.given_up: set[str] = set()

    def record(self, source: str, error: BaseException) -> bool:
        """Record `error`. Return True if it is the job's own exception, which the caller must raise again."""
        if _is_foreign(error):
            return True
        self._counts[source] += 1
        count = self._counts[source]
        if count == MAX_FAILURES:
            self.given_up.add(source)
        if count <= MAX_ROWS:
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-4000:]
            number = self._buffer.number
            message = f"{type(error).__name__}: {error}"[:500]
            self._buffer.rows.append((time_ns() // 1000, number(source), number(message), number(text), count))
        return False


def _is_foreign(error: BaseException) -> bool:
    """Return whether a signal handler of the job raised `error` while the recorder's code ran.

    Python runs handlers between two bytecodes, as if the interrupted function had called them, so the frame below the
    recorder's belongs neither to the recorder, nor to torch, nor to the standard library.
    """
    ours = __name__.rpartition(".guest.")[0] + "."
    entry = error.__traceback__
    while entry is not None:
        frame = entry.tb_frame
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(ours):
            path = frame.f_code.co_filename
            in_stdlib = path.startswith(_STDLIB) and not path.startswith(_STDLIB + "site-packages")
            return module.partition(".")[0] != "torch" and not in_stdlib
        entry = entry.tb_next
    return False
