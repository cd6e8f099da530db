"""One SQL statement, answered: checked, given its tables, limited in time, memory and rows.

Runs in the host server, on a thread of the query's own; DuckDB lets go of the GIL while it works. Nothing is asked
of the target unless the statement names a live table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeVar

import duckdb

from probe_agent.target import Target
from probe_agent.wire import QueryRequest

from .databases import Database, Databases
from .deadline import Deadline
from .errors import failed
from .gather import Gathered
from .open_rings import OpenRings
from .source import TableSource
from .statement import Answer, Rows, arrow_stream, check_limits, json_answer, only_statement, read_rows, with_cut

__all__ = ["QueryEngine"]

T = TypeVar("T")


class QueryEngine:
    """Answers queries; keeps mapped rings and empty databases from one to the next. Any thread may ask."""

    def __init__(self) -> None:
        self._databases = Databases()
        self.rings = OpenRings()

    def close(self) -> None:
        """Let go of everything that was kept."""
        self._databases.close()
        self.rings.forget_removed()

    def json(
        self, targets: Sequence[Target], request: QueryRequest, deadline: Deadline, remarks: Sequence[str] = ()
    ) -> Answer:
        """A `wire.QueryResult` as JSON. Raises QueryFailed, BadRequest, or NoAnswer."""
        began = perf_counter()

        def read(connection: duckdb.DuckDBPyConnection, sql: str) -> Rows:
            return read_rows(connection, sql, request)

        rows, gathered = self._run(targets, request, deadline, read)
        notes = [*remarks, *gathered.notes]
        return json_answer(rows, notes, request, perf_counter() - began, gathered.missing)

    def arrow(
        self, targets: Sequence[Target], request: QueryRequest, deadline: Deadline, remarks: Sequence[str] = ()
    ) -> Answer:
        """An Arrow IPC stream. Raises QueryFailed, BadRequest, or NoAnswer."""

        def read(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[bytes, bool]:
            return arrow_stream(connection.sql(sql), request)

        (body, truncated), gathered = self._run(targets, request, deadline, read)
        notes = with_cut([*remarks, *gathered.notes], truncated, request)
        return Answer(body, truncated, tuple(notes), gathered.shapes)

    def _run(
        self,
        targets: Sequence[Target],
        request: QueryRequest,
        deadline: Deadline,
        read: Callable[[duckdb.DuckDBPyConnection, str], T],
    ) -> tuple[T, Gathered]:
        check_limits(request)
        self.rings.forget_removed()
        try:
            with self._databases.lend(request.memory_mb) as database:
                deadline.start(database.connection)
                try:
                    sql = only_statement(database.connection, request.sql)
                    gathered = Gathered(self.rings, targets, sql)
                    result = _attempt(database, gathered, sql, read, copied=False)
                    if gathered.overtaken() and deadline.reason is None:
                        result = _attempt(database, gathered, sql, read, copied=True)
                    if isinstance(result, duckdb.Error):
                        raise result
                    if deadline.reason is not None:
                        raise duckdb.InterruptException("ended")  # the answer came as its time was up
                    return result, gathered
                finally:
                    deadline.end()
        except duckdb.Error as error:
            columns = Gathered(self.rings, targets, "").columns_of_all
            raise failed(error, request.sql, columns, deadline, request.memory_mb) from None


def _attempt(
    database: Database,
    gathered: Gathered,
    sql: str,
    read: Callable[[duckdb.DuckDBPyConnection, str], T],
    *,
    copied: bool,
) -> T | duckdb.Error:
    """What `read` gives, or the error it met: rows that were overwritten under it may have caused that."""
    connection = database.connection
    sources: list[TableSource] = []
    views: dict[str, str] = {}
    try:
        for source in gathered.sources(copied=copied):
            sources.append(source)
            views[source.name] = source.register(connection)
        database.show(views)
        return read(connection, sql)
    except duckdb.Error as error:
        return error
    finally:
        connection.execute("SELECT 1").fetchall()  # closes a result that was not read to its end
        for source in sources:
            source.unregister(connection)
