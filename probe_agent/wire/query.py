"""SQL query and its answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from ._documented import DOCUMENTED

__all__ = ["QueryColumn", "QueryRequest", "QueryResult", "Value"]

#: A value in an answer. JSON has no NaN and no infinities: they are "NaN", "Infinity" and "-Infinity".
Value = bool | int | float | str | list[object] | dict[str, object] | None


@dataclass(frozen=True)
class QueryRequest:
    """One read-only statement and its limits."""

    __pydantic_config__ = DOCUMENTED

    sql: str
    """one SELECT (or EXPLAIN, DESCRIBE, SHOW) statement in DuckDB's dialect"""
    max_rows: int = 100_000
    """maximum number of rows; `truncated` says whether there were more"""
    timeout_s: float = 10.0
    """how long the query may run, in seconds"""
    memory_mb: int = 512
    """how much memory the query may use, in megabytes"""


@dataclass(frozen=True)
class QueryColumn:
    """One column of an answer."""

    __pydantic_config__ = DOCUMENTED

    name: str
    """its name in the statement; two columns may have the same name"""
    type: str
    """SQL type: DOUBLE, BIGINT, VARCHAR, TIMESTAMP, …"""


@dataclass(frozen=True)
class QueryResult:
    """The rows, and remarks on them."""

    __pydantic_config__ = DOCUMENTED

    columns: tuple[QueryColumn, ...]
    """in the order of the statement"""
    rows: tuple[list[Value], ...]
    """one list per row; "NaN", "Infinity" and "-Infinity" are strings, timestamps are ISO 8601 in UTC"""
    truncated: bool
    """whether there were more rows than `max_rows`"""
    notes: tuple[str, ...]
    """what limits the answer: unanswered targets, truncated rows, why a table has no rows"""
    elapsed_s: float
    """how long the query took on the server, in seconds"""
    missing: tuple[str, ...] = ()
    """recorded tables of the statement without a row in any target; `notes` has the reason and the remedy"""
    unanswered: dict[str, str] = field(default_factory=dict)
    """by PID, why a target whose rows of a live table the statement needs has none in the answer"""
