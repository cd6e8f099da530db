"""Execution of one SQL statement: it is checked, gets its tables, and is limited in memory and rows.

Runs in a query worker. The target is asked only if the statement names a live table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeVar

import duckdb

from probe_agent.sql.engine.kernel_limits import free_memory, hold_memory
from probe_agent.sql.tables.live_rows import TakeLive
from probe_agent.targets import Target
from probe_agent.wire import QueryRequest

from .databases import Database, Databases
from .errors import failed
from .gather import Gathered
from .open_rings import OpenRings
from .request import Answer, Pieces, out_of_memory
from .source import TableSource
from .statement import Rows, arrow_stream, json_answer, only_statement, read_rows, with_cut

__all__ = ["Executor"]

T = TypeVar("T")


class Executor:
    """Runs statements one after the other, and keeps mapped rings and empty databases between them."""

    def __init__(self, threads: int) -> None:
        self._databases = Databases(threads)
        self._databases.open(QueryRequest.memory_mb)
        self._rings = OpenRings()

    @property
    def mapped_rings(self) -> int:
        """Bytes of the address space that rings take."""
        return self._rings.mapped_bytes

    def forget_removed(self) -> None:
        """Unmap rings whose file is gone."""
        self._rings.forget_removed()

    def run(
        self,
        targets: Sequence[Target],
        request: QueryRequest,
        remarks: Sequence[str],
        take: TakeLive,
        *,
        arrow: bool,
        began: float,
    ) -> Answer:
        """Return the JSON of a `wire.QueryResult`, or an Arrow IPC stream. Raises QueryFailed or NoAnswer."""
        if arrow:

            def read_stream(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[Pieces, bool]:
                return arrow_stream(connection.sql(sql), request)

            (pieces, truncated), gathered = self._run(targets, request, take, read_stream)
            notes = with_cut([*remarks, *gathered.notes], truncated, request)
            return Answer(pieces, truncated, tuple(notes), gathered.shapes, gathered.missing)

        def read(connection: duckdb.DuckDBPyConnection, sql: str) -> Rows:
            return read_rows(connection, sql, request)

        rows, gathered = self._run(targets, request, take, read)
        notes = [*remarks, *gathered.notes]
        return json_answer(rows, notes, request, perf_counter() - began, gathered.missing, gathered.unanswered)

    def _run(
        self,
        targets: Sequence[Target],
        request: QueryRequest,
        take: TakeLive,
        read: Callable[[duckdb.DuckDBPyConnection, str], T],
    ) -> tuple[T, Gathered]:
        self._rings.forget_removed()
        try:
            with self._databases.lend(request.memory_mb) as database:
                hold_memory(request.memory_mb)
                sql = only_statement(database.connection, request.sql)
                free_memory()
                gathered = Gathered(self._rings, targets, sql, take)
                result = _attempt(database, gathered, sql, read, request.memory_mb, copied=False)
                if gathered.overtaken():
                    result = _attempt(database, gathered, sql, read, request.memory_mb, copied=True)
                if isinstance(result, Exception):
                    raise result
                return result, gathered
        except duckdb.Error as error:
            free_memory()
            columns = Gathered(self._rings, targets, "", take).columns_of_all
            raise failed(error, request.sql, columns, request.memory_mb) from error
        except MemoryError as error:
            raise out_of_memory(request.memory_mb) from error
        finally:
            free_memory()


def _attempt(
    database: Database,
    gathered: Gathered,
    sql: str,
    read: Callable[[duckdb.DuckDBPyConnection, str], T],
    memory_mb: int,
    *,
    copied: bool,
) -> T | duckdb.Error | MemoryError:
    """Return what `read` returns, or its error, which rows overwritten meanwhile may have caused."""
    connection = database.connection
    sources: list[TableSource] = []
    views: dict[str, str] = {}
    try:
        for source in gathered.sources(copied=copied):
            sources.append(source)
            views[source.name] = source.register(connection)
        database.show(views)
        hold_memory(memory_mb)
        return read(connection, sql)
    except (duckdb.Error, MemoryError) as error:
        return error
    finally:
        free_memory()
        connection.execute("SELECT 1").fetchall()  # closes a result that was not read to its end
        for source in sources:
            source.unregister(connection)
