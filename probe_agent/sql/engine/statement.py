"""One SQL statement and its answer: the statement is checked, its rows are limited and encoded as JSON or Arrow.

Runs in a query worker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import duckdb
from nanoarrow import c_array_stream, ipc  # type: ignore[import-untyped]
from nanoarrow.c_array_stream import CArrayStream  # type: ignore[import-untyped]

from probe_agent.errors import LimitReached, QueryFailed
from probe_agent.wire import QueryRequest

from .errors import READ_ONLY, duckdb_error
from .request import Answer, Pieces
from .values import json_rows

__all__ = [
    "Rows",
    "arrow_stream",
    "json_answer",
    "only_statement",
    "read_rows",
    "with_cut",
]

#: Rows are encoded in pieces of about this length, so that long ones are not in memory once more as Python's objects;
#: in the first piece are these few.
_PIECE_BYTES = 1 << 20
_FIRST_ROWS = 64
#: So many rows are all rows; who gathers the answers of many hosts asks for them.
_ALL_ROWS = 2**31
#: Functions that reach past the tables: they run SQL we have not seen, belong to DuckDB's Python module, or change
#: settings (on DuckDB 1.5 a log file that may not be written ends the process).
_REFUSED = re.compile(
    r"\b((?:en|dis)able_logging|pandas_scan|arrow_scan\w*|python_arrow_scan|python_map_function|json_execute_serialized_sql"
    r'|\w*external_resource\w*|(?:query|query_table)(?="?\s*\())\b',
    re.IGNORECASE,
)
_PRAGMA = re.compile(r"pragma\b", re.I)  # DuckDB 1.5 shows some of them as SELECT
_EXPLAIN = re.compile(r"explain(?:\s+analyze\b)?(?:\s*\([^)]*\)(?=\s*\w))?", re.I)
_SPACE = re.compile(r"(?:\s|--[^\r\n]*(?:[\r\n]|\Z))*")
_COMMENT_ENDS = re.compile(r"/\*|\*/")


def only_statement(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Return the one SELECT in `sql`. Raises QueryFailed for anything else."""
    statements = connection.extract_statements(sql)
    if not statements:
        raise QueryFailed("the query is empty", "write a statement, for example: SELECT * FROM python.steps LIMIT 5")
    if len(statements) > 1:
        raise QueryFailed(f"one statement at a time, these are {len(statements)}", "send them one by one")
    text: str = statements[0].query
    text = text.rstrip().rstrip(";")
    kind = statements[0].type
    begins = _past_comments(text)
    if kind == duckdb.StatementType.EXPLAIN and (explain := _EXPLAIN.match(begins)):
        # EXPLAIN ANALYZE runs what it explains.
        kind = connection.extract_statements(begins[explain.end() :])[0].type
    if _PRAGMA.match(_past_comments(sql)):
        kind = duckdb.StatementType.PRAGMA
    if kind != duckdb.StatementType.SELECT:
        raise QueryFailed(f"{READ_ONLY}; {kind.name.replace('_', ' ')} is refused", "begin with SELECT, FROM or WITH")
    if refused := _REFUSED.search(text):
        raise QueryFailed(f"{READ_ONLY}; {refused[1]} is refused", "name the tables you want to read")
    return text


def _past_comments(sql: str) -> str:
    """Return `sql` from its first word on. Comments nest, as in DuckDB, so that there is only one way to read them: a
    pattern with several ways takes for ever on some dozens of comments."""
    at = 0
    while True:
        space = _SPACE.match(sql, at)
        at = space.end() if space else at
        if not sql.startswith("/*", at):
            return sql[at:]
        depth = 0
        for mark in _COMMENT_ENDS.finditer(sql, at):
            depth += 1 if mark[0] == "/*" else -1
            if not depth:
                at = mark.end()
                break
        else:
            return ""


@dataclass(frozen=True)
class Rows:
    """Columns with their types, rows as a JSON list, and whether there are more."""

    columns: Sequence[tuple[str, str]]
    json: Sequence[bytes]
    truncated: bool


def read_rows(connection: duckdb.DuckDBPyConnection, sql: str, request: QueryRequest) -> Rows:
    """Return the rows of `sql` up to the limit. Raises LimitReached if they are longer than the query's memory."""
    result = connection.execute(sql)
    columns = _described(result)
    if any("WITH TIME ZONE" in kind for _, kind in columns):
        result = connection.execute(_without_zones(sql, columns))
    kinds = [kind for _, kind in columns]
    pieces: list[bytes] = []
    num_bytes, left, at_once = 0, request.max_rows, _FIRST_ROWS
    while rows := result.fetchmany(min(left + 1, at_once)):
        if kept := rows[:left]:
            pieces.append(json_rows(kept, kinds)[1:-1].encode("utf-8", "replace"))
            num_bytes += len(pieces[-1])
            _check_length(num_bytes, request)
            at_once = 1 + _PIECE_BYTES * len(kept) // len(pieces[-1])
        left -= len(rows)
        if left < 0:
            break
    # Not joined: an answer may be as long as the memory that the query may use.
    separated = [part for piece in pieces for part in (b", ", piece)][1:]
    return Rows(columns, [b"[", *separated, b"]"], left < 0)


def json_answer(
    rows: Rows,
    notes: list[str],
    request: QueryRequest,
    elapsed_s: float,
    missing: Sequence[str] = (),
    unanswered: Mapping[str, str] = MappingProxyType({}),
) -> Answer:
    """Return a `wire.QueryResult` as JSON."""
    notes = with_cut(notes, rows.truncated, request)
    head = {
        "columns": [{"name": name, "type": kind} for name, kind in rows.columns],
        "truncated": rows.truncated,
        "notes": notes,
        "missing": list(missing),
        "unanswered": dict(unanswered),
        "elapsed_s": round(elapsed_s, 6),
    }
    # The rows are JSON already: they are put in, not encoded once more.
    text = json.dumps(head, ensure_ascii=False)[:-1].encode("utf-8", "replace")
    return Answer((text, b', "rows": ', *rows.json, b"}"), rows.truncated, tuple(notes))


def _described(result: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
    return [(str(entry[0]), str(entry[1])) for entry in result.description or ()]


def _without_zones(sql: str, columns: Sequence[tuple[str, str]]) -> str:
    """Return `sql` with times of a zone as text in UTC: to convert them, DuckDB would need the package pytz."""
    names = [f"c{at}" for at in range(len(columns))]
    shown = [
        f"timezone('UTC', {name})"
        if kind == "TIMESTAMP WITH TIME ZONE"
        else f"{name}::VARCHAR"
        if "WITH TIME ZONE" in kind
        else name
        for name, (_, kind) in zip(names, columns, strict=True)
    ]
    return f"SELECT {', '.join(shown)} FROM ({sql}\n) AS t({', '.join(names)})"


def arrow_stream(relation: Any, request: QueryRequest) -> tuple[Pieces, bool]:  # Any: None for one without rows
    """Return the rows of `relation` up to the limit, and whether there are more. Raises LimitReached if they are longer
    than the query's memory."""
    out = _Output(request)
    most = request.max_rows
    if most < _ALL_ROWS and hasattr(relation, "limit"):  # a limit has the statement bound once more, 1 ms
        relation = relation.limit(most + 1)
    stream = c_array_stream(relation)
    schema = stream.get_schema()
    num_rows = 0
    try:
        with ipc.StreamWriter.from_writable(out) as writer:
            for batch in stream:
                kept = batch[: most - num_rows] if num_rows + len(batch) > most else batch
                num_rows += len(batch)
                if len(kept):
                    writer.write_array(kept)
            if not out.pieces:
                writer.write_stream(CArrayStream.from_c_arrays([], schema))
    except RuntimeError as failure:  # nanoarrow's own, in which DuckDB's and those of `out` are a text
        raise (out.refusal or duckdb_error(str(failure))) from None
    finally:
        stream.release()  # the connection takes no other statement before
    return out.pieces, num_rows > most


class _Output:
    """File that nanoarrow writes to. Pieces are not joined: an answer may be as long as the memory of its query."""

    def __init__(self, request: QueryRequest) -> None:
        self.pieces: list[bytearray] = []
        #: Why it takes no more.
        self.refusal: LimitReached | MemoryError | None = None
        self._request = request
        self._num_bytes = 0

    def write(self, data: memoryview) -> int:
        try:
            self._num_bytes += len(data)
            _check_length(self._num_bytes, self._request)
            if self.pieces and len(self.pieces[-1]) + len(data) <= _PIECE_BYTES:
                self.pieces[-1] += data
            else:
                self.pieces.append(bytearray(data))
        except (LimitReached, MemoryError) as refusal:
            self.refusal = self.refusal or refusal
            raise
        return len(data)


def _check_length(num_bytes: int, request: QueryRequest) -> None:
    if num_bytes > request.memory_mb * 1_000_000:
        raise LimitReached(
            f"the answer is longer than the {request.memory_mb} MB of memory that the query may use",
            "select fewer rows or columns, or allow more: --memory MEGABYTES",
        )


def with_cut(notes: list[str], truncated: bool, request: QueryRequest) -> list[str]:
    """Add a note if rows were cut."""
    if not truncated:
        return notes
    return [*notes, f"cut after {request.max_rows:,} rows: there are more (--max-rows)"]
