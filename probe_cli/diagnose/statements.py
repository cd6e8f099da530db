"""Statements of several rules as one, and the rows of each in its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from probe_cli.cluster.by_host import TABLE, list_of, tables_of

from .rule import Row

__all__ = ["rows_in", "together"]

_NO_JSON = {text: float(text) for text in ("NaN", "Infinity", "-Infinity")}


def together(statements: Mapping[str, str]) -> str:
    """Return one statement of one row: a list of rows for each of `statements`. Each table is bound once for all of
    them, which takes a third off: some have forty columns."""
    every = ",\n".join(f'({list_of(sql)}) AS "{name}"' for name, sql in statements.items())
    tables = ", ".join(f'"{name}" AS (FROM {name})' for name in tables_of(every))
    return (f"WITH {tables} " if tables else "") + "SELECT " + TABLE.sub(r'\1 "\2"', every)


def rows_in(told: Mapping[str, object]) -> dict[str, Sequence[Row]]:
    """Return the rows of each statement, from the lists in an answer. A list without rows is NULL."""
    return {
        name: cast("list[Row]", _with_numbers(rows)) if isinstance(rows, list) else [] for name, rows in told.items()
    }


def _with_numbers(value: object) -> object:
    """Return an answer with the numbers that JSON has no form for, and that come as texts."""
    if isinstance(value, str):
        return _NO_JSON.get(value, value)
    if isinstance(value, list):
        return [_with_numbers(each) for each in value]
    if isinstance(value, dict):
        return {name: _with_numbers(each) for name, each in value.items()}
    return value
