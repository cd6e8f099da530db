"""DuckDB databases in which nothing but reading what we register is possible.

Runs in query workers. Making one takes 12 to 20 ms, so one that a query has left clean serves the next query; it
is dropped instead when the query failed or was interrupted. One that is waiting costs about a megabyte.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import duckdb

from probe_agent.wire import quoted

__all__ = ["Database", "Databases", "open_database"]

_MAX_IDLE = 4


class Database:
    """One of them, with the views of the last query: the arrays that they show are gone, so nothing is in them."""

    def __init__(self, memory_mb: int, threads: int | None = None) -> None:
        self.memory_mb = memory_mb
        self.connection = open_database(memory_mb, threads=threads)
        self._views: dict[str, str] = {}

    def show(self, views: Mapping[str, str]) -> None:
        """Have these views, by name `schema.table` the SELECT of each, and no others. What is there already stays:
        making a view takes 1 to 2 ms, and the same tables are asked again and again."""
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
    """Databases by their memory limit, which is fixed like everything else about them."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads
        self._idle: list[Database] = []
        self._lock = threading.Lock()

    def open(self, memory_mb: int) -> None:
        """Have one ready."""
        self._idle.append(Database(memory_mb, self._threads))

    @contextmanager
    def lend(self, memory_mb: int) -> Iterator[Database]:
        """A database for one query, on one thread. It has to be given back without anything registered."""
        database = self._take(memory_mb) or Database(memory_mb, self._threads)
        try:
            yield database
        except BaseException:
            database.connection.close()
            raise
        with self._lock:
            self._idle.append(database)
            dropped = self._idle.pop(0) if len(self._idle) > _MAX_IDLE else None
        if dropped is not None:
            dropped.connection.close()

    def close(self) -> None:
        """Drop those that wait."""
        with self._lock:
            idle, self._idle = self._idle, []
        for database in idle:
            database.connection.close()

    def _take(self, memory_mb: int) -> Database | None:
        with self._lock:
            for at in reversed(range(len(self._idle))):  # the last one first: it may have the views already
                if self._idle[at].memory_mb == memory_mb:
                    return self._idle.pop(at)
        return None


def open_database(
    memory_mb: int, *, settings: Sequence[str] = (), threads: int | None = None
) -> duckdb.DuckDBPyConnection:
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
