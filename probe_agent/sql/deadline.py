"""Ends a running query: when its time is up, or when nobody waits for it any more.

A timer thread for each query, asleep. It goes on interrupting until the query says that it is over: an interrupt
that comes between two calls into DuckDB would be lost.
"""

from __future__ import annotations

import threading

import duckdb

__all__ = ["Deadline"]

_AGAIN_S = 0.02


class Deadline:
    """What may interrupt one query."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.reason: str | None = None
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._timer: threading.Timer | None = None

    def start(self, connection: duckdb.DuckDBPyConnection) -> None:
        """From now on `connection` is interrupted when it is time, or when `cancel` is or was called."""
        with self._lock:
            self._connection = connection
            self._set_timer(_AGAIN_S if self.reason else self.timeout_s)

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
            if self._timer is not None:
                self._timer.cancel()

    def _set_timer(self, after_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(after_s, self._expired)
        self._timer.daemon = True
        self._timer.start()

    def _expired(self) -> None:
        with self._lock:
            if self._connection is not None:
                self.reason = self.reason or "timed out"
                self._interrupt()

    def _interrupt(self) -> None:
        assert self._connection is not None
        self._connection.interrupt()
        self._set_timer(_AGAIN_S)
