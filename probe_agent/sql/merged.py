"""The database where the answers of several host servers come together: tables made and filled from outside.

Runs in a worker of the command line (`merging.py` is its other end), so that a statement meets the same DuckDB, the
same limits and the same JSON there as on a host, and a crash while answers are read ends nothing else. What comes from
a host is untrusted: types are checked before they are put into SQL, and a stream that does not fit leaves no row.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import duckdb
from nanoarrow.c_array_stream import CArrayStream  # type: ignore[import-untyped]

from probe_agent.errors import QueryFailed
from probe_agent.wire import QueryRequest, quoted

from .engine.databases import open_database
from .engine.errors import failed
from .engine.request import Answer
from .engine.statement import arrow_stream, json_answer, only_statement, read_rows, with_cut
from .merging import RefusedStatement
from .untrusted_arrow import decoded

__all__ = ["MergeExecutor"]

#: Without what is known of the (still empty) tables, plans say which columns and rows a statement needs of any table.
_PLANS_FOR_ANY_ROWS = "disabled_optimizers='statistics_propagation,empty_result_pullup'"
_EXPLAIN = "EXPLAIN "
#: The name by which DuckDB reads streams while they are inserted.
_ANSWER = "_answer"
_TYPE = re.compile(r"[A-Z][A-Z0-9_ ]*(\(\d+(,\s*\d+)?\))?(\[\d*\])*|\"NULL\"")

_functions: list[tuple[str, str, str | None]] = []
#: An empty database that waits for the next statement, by its memory limit: making one takes 25 ms.
_idle: dict[int, duckdb.DuckDBPyConnection] = {}


class MergeExecutor:
    """Tables by name, and statements over them. One thread at a time."""

    def __init__(self, request: QueryRequest) -> None:
        self._request = request
        waiting = _idle.pop(request.memory_mb, None)
        self._connection = waiting or open_database(request.memory_mb, settings=(_PLANS_FOR_ANY_ROWS,))
        self._schemas: set[str] = set()
        self._tables: dict[str, list[str]] = {}
        self._types: dict[str, bool] = {}

    def close(self) -> None:
        """Drop everything. After a failure the database itself is dropped."""
        try:
            self._connection.execute("SELECT 1").fetchall()  # closes a result that was not read to its end
            for schema in self._schemas:
                self._connection.execute(f"DROP SCHEMA {quoted(schema)} CASCADE")
        except duckdb.Error:
            self._connection.close()
        else:
            _idle[self._request.memory_mb] = self._connection

    def only_statement(self, sql: str) -> str:
        """Return the one SELECT (or EXPLAIN, DESCRIBE, SHOW) in `sql`. Raises QueryFailed."""
        try:
            return only_statement(self._connection, sql)
        except duckdb.Error as error:
            raise self._failed(error, {}) from None

    def create(self, table: str, columns: Mapping[str, str]) -> None:
        """Create the empty table `schema.name`. Raises RefusedStatement for an unknown column type."""
        for kind in columns.values():
            if not self.is_type(kind):
                raise RefusedStatement(f"{kind} cannot be stored")
        schema = table.rpartition(".")[0]
        self._schemas.add(schema)
        described = ", ".join(f"{quoted(column)} {_storable(kind)}" for column, kind in columns.items())
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
        self._connection.execute(f"CREATE TABLE {_table(table)} ({described})")
        if not table.startswith("_probe."):
            self._tables[table] = list(columns)

    def drop(self, table: str) -> None:
        """Drop a table."""
        self._connection.execute(f"DROP TABLE {_table(table)}")

    def is_type(self, kind: str) -> bool:
        """Return whether `kind`, perhaps from a host, is a column type: it goes into SQL as it is."""
        if kind not in self._types:
            found = _TYPE.fullmatch(kind) is not None
            try:
                self._types[kind] = found and bool(self.described(f"SELECT CAST(NULL AS {_storable(kind)})"))
            except RefusedStatement:
                self._types[kind] = False
        return self._types[kind]

    def fill(
        self, parts: Sequence[tuple[str, Sequence[tuple[str, str]], bytes]]
    ) -> tuple[dict[str, int], dict[int, str]]:
        """Add the rows of Arrow streams: for each the table, and its columns with their types in the order of the
        stream. Returns how many rows each table got, and for every stream that does not fit why not.

        Streams that are alike go in together: to insert one alone takes 3 ms, one more of many 0.4.
        """
        alike: dict[tuple[str, tuple[tuple[str, str], ...], bytes], list[int]] = {}
        for at, (table, columns, stream) in enumerate(parts):
            alike.setdefault((table, tuple(columns), _schema_message(stream)), []).append(at)
        num_rows: Counter[str] = Counter()
        malformed: dict[int, str] = {}
        for (table, columns, _), group in alike.items():
            try:
                num_rows[table] += self._insert(table, columns, [parts[at][2] for at in group])
            except _MalformedStream:
                for at in group:
                    try:
                        num_rows[table] += self._insert(table, columns, [parts[at][2]])
                    except _MalformedStream as failure:
                        malformed[at] = str(failure)
        return dict(num_rows), malformed

    def _insert(self, table: str, columns: Sequence[tuple[str, str]], streams: Sequence[bytes]) -> int:
        """Insert streams of one schema, all of them or none. Raises _MalformedStream."""
        try:
            source = _Streams(streams)
            if source.num_columns != len(columns):
                raise _MalformedStream(f"{source.num_columns} columns came, {len(columns)} were asked for")
            self._connection.register(_ANSWER, source)
            names = ", ".join(f"c{at}" for at in range(len(columns)))
            values = ", ".join(f"CAST(c{at} AS {_storable(kind)})" for at, (_, kind) in enumerate(columns))
            into = ", ".join(quoted(column) for column, _ in columns)
            ((num_rows,),) = self._connection.execute(
                f"INSERT INTO {_table(table)} ({into}) SELECT {values} FROM {_ANSWER} AS a({names})"
            ).fetchall()
            return int(num_rows)
        except duckdb.OutOfMemoryException as error:
            raise self._failed(error, {}) from None
        except (duckdb.Error, RuntimeError, ValueError, EOFError) as error:
            raise _MalformedStream(f"its rows cannot be read: {_first_line(error)}") from None
        finally:
            self._connection.unregister(_ANSWER)

    def load_parquet(self, table: str, columns: Mapping[str, str], path: str) -> int:
        """Add the rows of a Parquet file, which may be anybody's; returns how many. Raises RefusedStatement."""
        into = ", ".join(map(quoted, columns))
        values = ", ".join(f"CAST({quoted(column)} AS {_storable(kind)})" for column, kind in columns.items())
        try:
            # This database may open no file, so another one opens it: our own statement over the one path.
            with duckdb.connect(config={"memory_limit": f"{self._request.memory_mb}MB", "threads": 1}) as reader:
                self._connection.register(_ANSWER, _Relation(reader.read_parquet(path)))
                ((num_rows,),) = self._connection.execute(
                    f"INSERT INTO {_table(table)} ({into}) SELECT {values} FROM {_ANSWER}"
                ).fetchall()
            return int(num_rows)
        except duckdb.OutOfMemoryException as error:
            raise self._failed(error, {}) from None
        except (duckdb.Error, RuntimeError, ValueError) as error:
            raise RefusedStatement(_first_line(error)) from None
        finally:
            self._connection.unregister(_ANSWER)

    def parsed(self, sql: str) -> Any:  # DuckDB's own syntax tree, as decoded JSON
        """Return the syntax tree of the query `sql`; None for a statement that has none."""
        (text,) = self._fetch_one("SELECT json_serialize_sql(?::VARCHAR)", sql)
        tree = json.loads(str(text))
        return None if tree["error"] else tree["statements"][0]["node"]

    def expression(self, sql: str) -> Any:  # the same
        """Return the syntax tree of the expression `sql`. Raises RefusedStatement."""
        query = self.parsed(f"SELECT {sql}")
        if query is None:
            raise RefusedStatement(f"{sql} is not an expression")
        return query["select_list"][0]

    def text_of(self, query: Any) -> str:  # the same
        """Return the SQL of a syntax tree. Raises RefusedStatement."""
        tree = {"error": False, "statements": [{"node": query, "named_param_map": []}]}
        try:
            (text,) = self._fetch_one("SELECT json_deserialize_sql(?::JSON)", json.dumps(tree))
        except duckdb.Error as error:
            raise RefusedStatement(str(error)) from None
        return str(text)

    def described(self, sql: str) -> list[tuple[str, str]]:
        """Return names and types of the columns of `sql`. Raises RefusedStatement."""
        try:
            return [(str(row[0]), str(row[1])) for row in self._connection.execute(f"DESCRIBE {sql}").fetchall()]
        except duckdb.Error as error:
            raise RefusedStatement(str(error)) from None

    def plan(self, sql: str) -> Any:  # decoded JSON
        """Return the plan of `sql`. Raises RefusedStatement."""
        try:
            (_, plan) = self._fetch_one(f"EXPLAIN (FORMAT JSON) {sql}")
        except duckdb.Error as error:
            raise RefusedStatement(str(error)) from None
        return json.loads(str(plan))

    def functions(self) -> list[tuple[str, str, str | None]]:
        """Return name, kind and stability of all functions; the same for every database, and 50 ms to list."""
        if not _functions:
            rows = self._connection.execute(
                "SELECT function_name, function_type, stability FROM duckdb_functions()"
            ).fetchall()
            _functions.extend({(str(row[0]), str(row[1]), row[2]) for row in rows})
        return _functions

    def value(self, sql: str) -> list[str | None]:
        """Return the only column of `sql`, as text."""
        return [row[0] for row in self._connection.execute(sql).fetchall()]

    def check(self, sql: str, tables: Mapping[str, Sequence[str]]) -> None:
        """Raise QueryFailed, worded for users, when `sql` cannot be asked; `tables` are those that hints may name."""
        try:
            self._connection.execute(_EXPLAIN + sql).fetchall()
        except duckdb.Error as error:
            raise self._failed(_moved(error, len(_EXPLAIN)), tables) from None

    def json(self, sql: str, notes: Sequence[str]) -> Answer:
        """Return the answer as the JSON of a `wire.QueryResult`. Raises QueryFailed."""
        began = perf_counter()
        rows = self._limited(lambda: read_rows(self._connection, sql, self._request))
        return json_answer(rows, list(notes), self._request, perf_counter() - began)

    def arrow(self, sql: str, notes: Sequence[str]) -> Answer:
        """Return the answer as an Arrow IPC stream. Raises QueryFailed."""
        pieces, truncated = self._limited(lambda: arrow_stream(self._connection.sql(sql), self._request))
        return Answer(pieces, truncated, tuple(with_cut(list(notes), truncated, self._request)))

    def _limited(self, read: Any) -> Any:  # Any: whatever `read` gives
        try:
            return read()
        except duckdb.Error as error:
            raise self._failed(error, self._tables) from error

    def _fetch_one(self, sql: str, *parameters: str) -> tuple[object, ...]:
        (row,) = self._connection.execute(sql, list(parameters)).fetchall()
        return tuple(row)

    def _failed(self, error: duckdb.Error, tables: Mapping[str, Sequence[str]]) -> QueryFailed:
        request = self._request
        return failed(error, request.sql, tables, request.memory_mb)


class _Relation:
    """Rows of one database as an Arrow stream, which another database reads without pyarrow."""

    def __init__(self, relation: duckdb.DuckDBPyRelation) -> None:
        self._relation = relation

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._relation.__arrow_c_stream__(requested_schema)


class _MalformedStream(Exception):
    """A host has sent something that is not the answer to its question; says why."""


class _Streams:
    """Arrow IPC streams of one schema as one, which can be read more than once: DuckDB before 2.0 asks for the schema
    first."""

    def __init__(self, streams: Sequence[bytes]) -> None:
        self._arrays = []
        for stream in streams:
            self._schema, arrays = decoded(stream)
            self._arrays += arrays
        self.num_columns = self._schema.n_children

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        whole = CArrayStream.from_c_arrays(self._arrays, self._schema, validate=False)  # each has had it in its stream
        return whole.__arrow_c_stream__(requested_schema)


def _schema_message(stream: bytes) -> bytes:
    """Return the beginning of an Arrow IPC stream, up to its rows; streams that begin alike have the same columns."""
    return stream[: 8 + int.from_bytes(stream[4:8], "little")]


def _moved(error: duckdb.Error, num_bytes: int) -> duckdb.Error:
    """Return `error` with its position `num_bytes` earlier."""
    name, brace, said = str(error).partition("{")
    try:
        told = json.loads(brace + said)
        told["position"] = str(int(told["position"]) - num_bytes)
    except (ValueError, KeyError, TypeError):
        return error  # it tells no place
    return type(error)(name + json.dumps(told))


def _table(name: str) -> str:
    return quoted(*name.rsplit(".", 1))


def _storable(kind: str) -> str:
    return "INTEGER" if kind == '"NULL"' else kind


def _first_line(error: BaseException) -> str:
    text = str(error)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = json.loads(text[text.index("{") :])["exception_message"]
    return (text.strip().splitlines() or [type(error).__name__])[0][:200]
