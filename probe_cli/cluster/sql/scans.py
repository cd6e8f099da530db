"""Which columns and rows of each table a statement needs, as DuckDB itself sees it.

DuckDB's optimizer pushes projections and filters down to the scans of tables, through joins, CTEs and subqueries, and
EXPLAIN shows them. A filter is shown as text: it is used only when it reads as an expression of one row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .database import not_there
from .split import Splitter, Unsplittable
from .tree import Tree, replaced

if TYPE_CHECKING:
    from probe_agent.sql.merging import MergedDatabase

__all__ = ["Need", "needs"]

_OPTIONAL = "optional: "
_CHECK = "_probe.scanned"


@dataclass(frozen=True)
class Need:
    """Of one table: the columns in its own order, and which rows (None: all)."""

    columns: tuple[str, ...]
    rows: Tree | None


def needs(
    database: MergedDatabase, splitter: Splitter, sql: str, tables: Mapping[str, Mapping[str, str]]
) -> dict[str, Need]:
    """What `sql` needs of each of `tables`; a table that it needs nothing of is left out."""
    everything = {name: Need(tuple(columns), None) for name, columns in tables.items()}
    plan = _plan(database, sql)
    if plan is None or not _plans_are_understood(database):
        return everything
    found: dict[str, list[tuple[set[str], Tree | None]]] = {}
    for scan in _scans(plan):
        shown_name = scan["Table"].replace('"', "").lower().removeprefix("memory.")
        if shown_name.startswith("_probe."):
            continue  # one of ours, which is here
        if shown_name not in tables:
            return everything
        shown = _list(scan["Projections"])
        texts = [text.removeprefix(_OPTIONAL) for text in _list(scan.get("Filters"))]
        columns = set(tables[shown_name])
        if columns.issuperset(shown):
            columns = {c for c in columns if c in shown or any(c.lower() in text.lower() for text in texts)}
        found.setdefault(shown_name, []).append((columns, _rows(splitter, shown_name, texts)))
    result = {}
    for name, scans in found.items():
        wanted = set().union(*(columns for columns, _ in scans))
        filters = [rows for _, rows in scans if rows is not None]
        rows = _any(filters) if len(filters) == len(scans) else None
        result[name] = Need(tuple(column for column in tables[name] if column in wanted), rows)
    return result


def _plan(database: MergedDatabase, sql: str) -> Tree | None:
    try:
        return database.plan(sql)
    except not_there():
        return None  # DESCRIBE and its like have none


def _rows(splitter: Splitter, table: str, texts: list[str]) -> Tree | None:
    """The filters that can be read, all of them; None when there are none."""
    conditions = []
    for text in texts:
        try:
            tree = splitter.expression(f"({text})")
            conditions.append(splitter.of_one_row(table, _exact(tree)))
        except (Unsplittable, LookupError, TypeError):
            continue  # it reads as something else, or not at all: more rows than needed do no harm
    return _joined("CONJUNCTION_AND", conditions)


def _exact(tree: Tree) -> Tree:
    """`tree` with floats as floats: DuckDB would read 0.30000000000000004 as a DECIMAL and round it."""

    def number(node: dict[str, Tree]) -> Tree | None:
        literal = node.get("literal") or {}
        if node.get("class") != "CONSTANT" or literal.get("kind") != "NUMERIC":
            return None
        if not math.isfinite(float(literal["text"])):
            raise Unsplittable("an infinity has no literal")
        text = {**node, "literal": {"kind": "STRING", "text": literal["text"]}}
        double = {"class": "TYPE", "type": "TYPE", "alias": "", "catalog": "", "schema": "", "type_name": "DOUBLE"}
        kind = {**double, "children": [], "qualified_name": {"path": ["DOUBLE"]}}
        return {"class": "CAST", "type": "OPERATOR_CAST", "alias": "", "child": text, "try_cast": False,
                "type_expr": kind}  # fmt: skip

    return replaced(tree, number)


def _any(conditions: list[Tree]) -> Tree | None:
    return _joined("CONJUNCTION_OR", conditions)


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
    if not shown:
        return []
    return [shown] if isinstance(shown, str) else list(shown)


def _plans_are_understood(database: MergedDatabase) -> bool:
    """Whether this DuckDB shows in a plan what we look for; if not, a table would seem to be needed less than it is."""
    database.create(_CHECK, {"a": "BIGINT", "b": "BIGINT"})
    try:
        (scan,) = _scans(database.plan(f"SELECT a FROM {_CHECK} WHERE b > 1"))
        return scan["Table"] == f"memory.{_CHECK}" and scan["Projections"] == "a" and "b > 1" in str(scan["Filters"])
    except (KeyError, TypeError, ValueError):
        return False
    finally:
        database.drop(_CHECK)
