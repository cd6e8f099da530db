"""The tables that can be asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from ._documented import DOCUMENTED

__all__ = ["ColumnInfo", "TableInfo", "TableList", "quoted", "shape"]


def shape(columns: Iterable[tuple[str, str]]) -> str:
    """A word for names and types of these columns, in their order: the same word, the same columns."""
    return hashlib.sha256(json.dumps([list(column) for column in columns]).encode()).hexdigest()[:16]


def quoted(*names: str) -> str:
    """The SQL identifier of these names, whatever is in them: "schema"."table"."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


@dataclass(frozen=True)
class ColumnInfo:
    """One column."""

    __pydantic_config__ = DOCUMENTED

    name: str
    """its name in SQL"""
    type: str
    """SQL type"""
    unit: str
    """empty if it has none"""
    meaning: str
    """what it holds"""


@dataclass(frozen=True)
class TableInfo:
    """One table."""

    __pydantic_config__ = DOCUMENTED

    name: str
    """its name in SQL, including the schema"""
    doc: str
    """what its rows are"""
    kind: str
    """recorded (lies in a ring) or live (read when the query runs)"""
    columns: tuple[ColumnInfo, ...]
    """coordinates first"""
    rows: int | None
    """rows that can be read now; null for a live table"""
    lost: int | None
    """rows that newer ones have overwritten so far, in all rings of the table; null for a live table"""
    covers: float | None
    """seconds from the oldest row to the newest; with several targets, the smallest of these"""
    first: str | None
    """time of the oldest row, ISO 8601 in UTC; null without rows"""
    last: str | None
    """time of the newest row"""


@dataclass(frozen=True)
class TableList:
    """All tables of the selected targets."""

    __pydantic_config__ = DOCUMENTED

    tables: tuple[TableInfo, ...]
    """sorted by name"""
    notes: tuple[str, ...]
    """what could not be read"""
