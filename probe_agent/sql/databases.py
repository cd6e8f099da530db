"""Empty DuckDB databases in which nothing but reading what we register is possible.

Runs in the host server. Making one takes 12 to 20 ms, so one that a query has left clean serves the next query; it
is dropped instead when the query failed or was interrupted. One that is waiting costs about a megabyte.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import duckdb

__all__ = ["Databases", "open_database"]

_MAX_IDLE = 4


class Databases:
    """Databases by their memory limit, which is fixed like everything else about them."""

    def __init__(self) -> None:
        self._idle: list[tuple[int, duckdb.DuckDBPyConnection]] = []
        self._lock = threading.Lock()

    @contextmanager
    def lend(self, memory_mb: int) -> Iterator[duckdb.DuckDBPyConnection]:
        """A database for one query, on one thread. It has to be given back as it was."""
        connection = self._take(memory_mb) or open_database(memory_mb)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append((memory_mb, connection))
            dropped = self._idle.pop(0)[1] if len(self._idle) > _MAX_IDLE else None
        if dropped is not None:
            dropped.close()

    def close(self) -> None:
        """Drop those that wait."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def _take(self, memory_mb: int) -> duckdb.DuckDBPyConnection | None:
        with self._lock:
            for at, (limit, connection) in enumerate(self._idle):
                if limit == memory_mb:
                    del self._idle[at]
                    return connection
        return None


def open_database(memory_mb: int, *, settings: Sequence[str] = ()) -> duckdb.DuckDBPyConnection:
    """A new one, locked after `settings`: no files, no network, no extensions, no variables of ours, no settings."""
    connection = duckdb.connect(
        config={
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
            "temp_directory": "",
            "memory_limit": f"{memory_mb}MB",
            "errors_as_json": "true",
        }
    )
    connection.execute("SET TimeZone='UTC'")
    for setting in settings:
        connection.execute(f"SET {setting}")
    connection.execute("SET lock_configuration=true")
    return connection
