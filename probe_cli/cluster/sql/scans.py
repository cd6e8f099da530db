"""The columns and rows of each table that a statement needs, according to DuckDB's optimizer.

The optimizer pushes projections and filters down to the scans of tables, through joins, CTEs and subqueries, and
EXPLAIN shows them. A filter is shown as text: it is used only if it reads as an expression of one row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probe_agent.sql.merging import NotThere

from .split import Splitter, Unsplittable
from .tree import Tree, replaced

if TYPE_CHECKING:
    from probe_agent.sql.merging import MergedDatabase

__all__ = ["Need", "needs"]

_OPTIONAL = "optional: "
#: A table, a statement over it, and what the scan of it must look like in a plan.
_CHECK = "_probe.scanned"
_CHECKED = f"SELECT a FROM {_CHECK} WHERE b > 'it''s'"
_UNDERSTOOD = (f"memory.{_CHECK}", "a", "(b > 'it''s')")


@dataclass(frozen=True)
class Need:
    """Columns of one table in its own order, and a filter for its rows (None: all)."""

    columns: tuple[str, ...]
    rows: Tree | None


def needs(
    database: MergedDatabase, splitter: Splitter, sql: str, tables: Mapping[str, Mapping[str, str]]
) -> dict[str, Need]:
    """Return what `sql` needs of each of `tables`, as far as it needs anything."""
    everything = {name: Need(tuple(columns), None) for name, columns in tables.items()}
    try:
        scans = list(_scans(database.plan(sql)))
    except NotThere:
        return everything  # DESCRIBE and its like have no plan
    names = [scan["Table"].replace('"', "").lower().removeprefix("memory.") for scan in scans]
    scanned = {name for name in names if not name.startswith("_probe.")}
    if not scanned <= set(tables) or not _plans_are_understood(database):
        return everything
    found = {}
    for table in scanned:
        wanted: set[str] = set()
        filters = []
        for scan in (scan for name, scan in zip(names, scans, strict=True) if name == table):
            shown = _list(scan.get("Projections"))
            texts = [text.removeprefix(_OPTIONAL) for text in _list(scan.get("Filters"))]
            known = set(tables[table]).issuperset(shown)
            wanted |= {c for c in tables[table] if not known or c in shown or _is_in(c, texts)}
            filters.append(_joined("CONJUNCTION_AND", _conditions(database, splitter, table, texts)))
        rows = None if None in filters else _joined("CONJUNCTION_OR", filters)
        found[table] = Need(tuple(column for column in tables[table] if column in wanted), rows)
    return found


def _is_in(column: str, texts: list[str]) -> bool:
    return any(column.lower() in text.lower() for text in texts)


def _conditions(database: MergedDatabase, splitter: Splitter, table: str, texts: list[str]) -> list[Tree]:
    """Return the filters that can be read; without one of them, hosts send more rows than needed, which is harmless."""

    def exact(node: dict[str, Tree]) -> Tree | None:
        """Return a float as a float: DuckDB would read 0.30000000000000004 as a DECIMAL and round it."""
        literal = node.get("literal") or {}
        if node.get("class") != "CONSTANT" or literal.get("kind") != "NUMERIC":
            return None
        if not math.isfinite(float(literal["text"])):
            raise Unsplittable("an infinity has no literal")
        return database.expression(f"CAST('{literal['text']}' AS DOUBLE)")

    conditions = []
    for text in texts:
        try:
            conditions.append(splitter.of_one_row(table, replaced(database.expression(f"({text})"), exact)))
        except (Unsplittable, NotThere, LookupError):
            continue
    return conditions


def _joined(kind: str, conditions: list[Tree]) -> Tree | None:
    if len(conditions) < 2:
        return conditions[0] if conditions else None
    return {"class": "CONJUNCTION", "type": kind, "alias": "", "children": conditions}


def _scans(plan: Tree) -> Iterator[dict[str, Tree]]:
    for node in plan if isinstance(plan, list) else [plan]:
        if node["name"].strip() == "SEQ_SCAN":
            yield node["extra_info"]
        yield from _scans(node["children"])


def _list(shown: Tree) -> list[str]:
    return [shown] if shown and isinstance(shown, str) else list(shown or ())


def _plans_are_understood(database: MergedDatabase) -> bool:
    """Return whether plans of this DuckDB show what we look for, filters in SQL; those of DuckDB 1.5 do not."""
    database.create(_CHECK, {"a": "BIGINT", "b": "VARCHAR"})
    scans = list(_scans(database.plan(_CHECKED)))
    database.drop(_CHECK)
    return [tuple(scan.get(each) for each in ("Table", "Projections", "Filters")) for scan in scans] == [_UNDERSTOOD]
