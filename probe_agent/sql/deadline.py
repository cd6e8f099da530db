"""Ends a running query: when its time is up, or when nobody waits for it any more.

One thread for all queries of the process, asleep; a thread for each would take as long to start as a small query. It
goes on interrupting until the query says that it is over: an interrupt that comes between two calls into DuckDB would
be lost.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from time import monotonic

import duckdb

__all__ = ["Deadline"]

_AGAIN_S = 0.02


class _Alarms:
    """When which deadline wants to be looked at."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Deadline]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def set(self, deadline: Deadline, after_s: float) -> None:
        """Have `deadline.look` called then."""
        with self._changed:
            heapq.heappush(self._due, (monotonic() + after_s, next(self._numbers), deadline))
            if self._thread is None or not self._thread.is_alive():  # not in a process that was forked
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
            elif self._due[0][2] is deadline:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or (left_s := self._due[0][0] - monotonic()) > 0:
                    self._changed.wait(min(left_s, threading.TIMEOUT_MAX) if self._due else None)
                deadline = heapq.heappop(self._due)[2]
            deadline.look()


_alarms = _Alarms()


class Deadline:
    """What may interrupt one query."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.reason: str | None = None
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._ends = 0.0

    def start(self, connection: duckdb.DuckDBPyConnection) -> None:
        """From now on `connection` is interrupted when it is time, or when `cancel` is or was called."""
        with self._lock:
            self._connection = connection
            self._ends = monotonic() + self.timeout_s
            _alarms.set(self, _AGAIN_S if self.reason else self.timeout_s)

    def cancel(self) -> None:
        """Interrupt the query now; callable from any thread, also before it has begun."""
        with self._lock:
            self.reason = self.reason or "cancelled"
            if self._connection is not None:
                self._interrupt()

    def end(self) -> None:
        """The query is over; nothing interrupts its connection any more."""
        with self._lock:
            self._connection = None

    def look(self) -> None:
        """Interrupt the query if it still runs and should not."""
        with self._lock:
            if self._connection is not None and (self.reason or monotonic() >= self._ends):
                self.reason = self.reason or "timed out"
                self._interrupt()

    def _interrupt(self) -> None:
        assert self._connection is not None
        self._connection.interrupt()
        _alarms.set(self, _AGAIN_S)
