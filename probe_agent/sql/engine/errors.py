"""DuckDB's errors as one line that points at the place, with the name that was probably meant as the hint.

Runs in a query worker, or in the CLI where the answers of many hosts are put together, once a query has failed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import duckdb

from probe_agent.errors import QueryFailed
from probe_agent.wire import suggest_column, suggest_table

from .request import out_of_memory

__all__ = ["READ_ONLY", "duckdb_error", "failed"]

READ_ONLY = "Probe's SQL is read-only: one SELECT over the tables that `probe tables` lists"

_LIST = "list the tables and their columns with: probe … tables"
_NO_MEMORY = re.compile(r"Out of Memory Error|failed \(12\)")  # ENOMEM
_TABLE_AT = re.compile(r'"[^"]+"(?:\."[^"]+")?|[\w$]+(?:\.[\w$]+)*')


def failed(error: duckdb.Error, sql: str, tables: Mapping[str, Sequence[str]], memory_mb: int) -> QueryFailed:
    """Return `error` in words for users; `tables` are the known tables with their columns."""
    said = _said(error)
    message = said["exception_message"]
    if isinstance(error, duckdb.OutOfMemoryException) or "bad_alloc" in message:
        return out_of_memory(memory_mb)
    if isinstance(error, duckdb.PermissionException) or "configuration has been locked" in message:
        return QueryFailed(f"{READ_ONLY}; no files, network, extensions or settings", _first_line(message))
    place = _place(sql, said.get("position", ""))
    missing = _missing(said, sql, tables)
    if missing is not None:
        return QueryFailed(f"SQL error{place}: {missing[0]}", missing[1])
    return QueryFailed(
        f"SQL error{place}: {_first_line(message)}", _hint(message) or "correct the statement; the dialect is DuckDB's"
    )


def duckdb_error(text: str) -> duckdb.Error:
    """Return the error with this `text`, which came amid a stream of rows: of DuckDB, or of nanoarrow."""
    error = duckdb.Error(text)
    is_memory = _said(error).get("exception_type") == "Out of Memory" or _NO_MEMORY.search(text)
    return duckdb.OutOfMemoryException(text) if is_memory else error


def _said(error: duckdb.Error) -> dict[str, str]:
    """Return the fields of an error: DuckDB puts JSON behind its name; some errors are text only."""
    text = str(error)
    start = text.find("{")
    if start >= 0:
        try:
            said = json.loads(text[start:])
        except ValueError:
            said = None
        if isinstance(said, dict) and "exception_message" in said:
            return {str(key): str(value) for key, value in said.items()}
    return {"exception_message": text}


def _place(sql: str, position: str) -> str:
    if not position.isdigit():
        return ""
    # DuckDB counts bytes.
    before = sql.encode()[: int(position)].decode("utf-8", "replace")
    return f" at line {before.count(chr(10)) + 1}, column {len(before) - (before.rfind(chr(10)) + 1) + 1}"


def _missing(said: Mapping[str, str], sql: str, tables: Mapping[str, Sequence[str]]) -> tuple[str, str] | None:
    """Return message and hint for a table, column or function that does not exist."""
    message = said["exception_message"]
    name = said.get("name", "")
    if said.get("error_subtype") == "COLUMN_NOT_FOUND":
        found = [candidate.strip() for candidate in said.get("candidates", "").split(",") if candidate.strip()]
        return f'there is no column "{name}"', _hint_for_column(name, sql, tables) or _use(found) or _LIST
    if match := re.match(r'(?:Values list|Table) "([^"]+)" does not have a column named "([^"]+)"', message):
        return f'"{match[1]}" has no column "{match[2]}"', _hint_for_column(match[2], sql, tables) or _LIST
    if said.get("type") in ("Table", "View") or re.match(r"Table with name .* does not exist because schema", message):
        position = said.get("position", "")
        text = sql.encode()[int(position) :].decode("utf-8", "replace") if position.isdigit() else name
        written = _TABLE_AT.match(text)
        asked = written[0].replace('"', "") if written else name
        near, having = suggest_table(asked, tables)
        hint = _use(near) or _column_of(asked, having) or "use one of the tables: " + ", ".join(sorted(tables))
        return f'there is no table "{asked}"', hint
    if said.get("type", "").endswith("Function"):
        found = [candidate for candidate in said.get("candidates", "").split(",") if candidate]
        return f'there is no function "{name}"', _use(found) or "use a function of DuckDB's SQL"
    return None


def _hint_for_column(name: str, sql: str, tables: Mapping[str, Sequence[str]]) -> str:
    """Return the column of the tables in `sql` that was probably meant, or the tables with a column of that name."""
    lowered = sql.lower()
    mentioned = {t: columns for t, columns in tables.items() if t.rpartition(".")[2].lower() in lowered}
    known = list(dict.fromkeys(column for columns in mentioned.values() for column in columns))
    return (
        _use(suggest_column(name, known))
        or _column_of(name, [table for table, columns in tables.items() if name.lower() in columns])
        or "; ".join(f"use a column of {table}: {', '.join(columns)}" for table, columns in mentioned.items())
    )


def _column_of(name: str, tables: Sequence[str]) -> str:
    return f"query {' or '.join(tables)}, with the column {name}" if tables else ""


def _use(names: Sequence[str]) -> str:
    return "use " + " or ".join(names) if names else ""


def _first_line(message: str) -> str:
    return message.strip().splitlines()[0] if message.strip() else "DuckDB gave no reason"


def _hint(message: str) -> str:
    """Return what DuckDB says below its first line, in one line."""
    return " ".join(" ".join(message.strip().splitlines()[1:]).split())[:300]
