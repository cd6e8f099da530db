"""DuckDB databases that can only read what is registered in them.

Runs in query workers. Making one takes 12 to 20 ms, so one that a query has left clean serves the next query; it
is dropped instead when DuckDB failed or was interrupted. One that is waiting costs about a megabyte.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import duckdb

from probe_agent.errors import ProbeError
from probe_agent.wire import quoted

__all__ = ["Database", "Databases", "open_database"]

_MAX_IDLE = 4


class Database:
    """A database with the views of the last query, which are empty: their arrays are gone."""

    def __init__(self, memory_mb: int, threads: int | None = None) -> None:
        self.memory_mb = memory_mb
        self.connection = open_database(memory_mb, threads=threads)
        self._views: dict[str, str] = {}

    def show(self, views: Mapping[str, str]) -> None:
        """Create these views, the SELECT of each by `schema.table`, and drop all others.

        Views that exist already are kept: creating one takes 1 to 2 ms, and the same tables are queried repeatedly."""
        for name in self._views.keys() - views.keys():
            self.connection.execute(f"DROP VIEW {_qualified(name)}")
            del self._views[name]
        for name, select in views.items():
            if self._views.get(name) == select:
                continue
            self._views.pop(name, None)
            self.connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(name.partition('.')[0])}")
            self.connection.execute(f"CREATE OR REPLACE VIEW {_qualified(name)} AS {select}")
            self._views[name] = select


class Databases:
    """Idle databases by their memory limit, which cannot be changed."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads
        self._idle: list[Database] = []
        self._lock = threading.Lock()

    def open(self, memory_mb: int) -> None:
        """Create a database for a later query."""
        self._idle.append(Database(memory_mb, self._threads))

    @contextmanager
    def lend(self, memory_mb: int) -> Iterator[Database]:
        """Lend a database to one query, on one thread. Nothing may be registered in it when it is returned."""
        database = self._take(memory_mb) or Database(memory_mb, self._threads)
        try:
            yield database
        except ProbeError:  # such as a target that does not answer: DuckDB itself has not failed
            self._take_back(database)
            raise
        except BaseException:
            database.connection.close()
            raise
        self._take_back(database)

    def close(self) -> None:
        """Close the idle databases."""
        with self._lock:
            idle, self._idle = self._idle, []
        for database in idle:
            database.connection.close()

    def _take_back(self, database: Database) -> None:
        with self._lock:
            self._idle.append(database)
            dropped = self._idle.pop(0) if len(self._idle) > _MAX_IDLE else None
        if dropped is not None:
            dropped.connection.close()

    def _take(self, memory_mb: int) -> Database | None:
        with self._lock:
            for at in reversed(range(len(self._idle))):  # the last one first: it may have the views already
                if self._idle[at].memory_mb == memory_mb:
                    return self._idle.pop(at)
        return None


def open_database(
    memory_mb: int, *, settings: Sequence[str] = (), threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """Open a database and lock it after `settings`: no files, network, extensions, Python variables or settings."""
    connection = duckdb.connect(
        config={
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
            "temp_directory": "",
            "memory_limit": f"{memory_mb}MB",
            "errors_as_json": "true",
            **({"threads": str(threads)} if threads else {}),
        }
    )
    connection.execute("SET TimeZone='UTC'")
    for setting in settings:
        connection.execute(f"SET {setting}")
    connection.execute("SET lock_configuration=true")
    return connection


def _qualified(name: str) -> str:
    return quoted(*name.split(".", 1))
