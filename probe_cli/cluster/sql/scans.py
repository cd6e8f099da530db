"""What has to be fetched: the columns and rows of each table that a statement needs, according to DuckDB's optimizer.

The optimizer pushes projections and filters down to the scans of tables, through joins, CTEs and subqueries, and
EXPLAIN shows them. A filter is shown as text: it is used only if it reads as an expression of one row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from probe_agent.sql.merging import MergedDatabase, RefusedStatement
from probe_agent.wire import quoted

from .select import of_one_row
from .split import Part, Splitter, Unsplittable
from .tree import Tree, column, replaced, walk

__all__ = ["fetched"]

_OPTIONAL = "optional: "
#: A table, a statement over it, and what the scan of it must look like in a plan.
_CHECK = "_probe.scanned"
_CHECKED = f"SELECT a FROM {_CHECK} WHERE b > 'it''s'"
_UNDERSTOOD = (f"memory.{_CHECK}", "a", "(b > 'it''s')")


def fetched(
    database: MergedDatabase, splitter: Splitter, sql: str, tables: Mapping[str, Mapping[str, str]]
) -> list[Part]:
    """Return what `sql` needs of each of `tables`, as far as it needs anything; it goes into the table itself."""
    parts = []
    for name, (wanted, rows) in _needed(database, splitter, sql, tables).items():
        filtered_by = {node["column_names"][0].lower() for node in walk(rows) if "column_names" in node}
        types = tables[name]
        uses = frozenset(each for each in types if each in wanted or each.lower() in filtered_by)
        sent = [each for each in types if each in wanted] or list(types)[:1]  # any column tells how many rows there are
        source = database.parsed(f"SELECT 1 FROM {quoted(*name.rsplit('.', 1))}")
        select = {**source, "select_list": [column(each) for each in sent], "where_clause": rows}
        parts.append(Part(name, select, uses | set(sent), name, [(each, types[each]) for each in sent]))
    return parts


def _needed(
    database: MergedDatabase, splitter: Splitter, sql: str, tables: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[set[str], Tree | None]]:
    """Return the columns that are needed of each table, and a filter for its rows (None: all)."""
    try:
        scans = list(_scans(database.plan(sql)))
    except RefusedStatement:
        scans = [{"Table": ""}]  # there is no plan
    names = [scan["Table"].replace('"', "").lower().removeprefix("memory.") for scan in scans]
    scanned = {name for name in names if not name.startswith("_probe.")}
    if not scanned <= set(tables) or not _plans_are_understood(database):
        return {name: (set(columns), None) for name, columns in tables.items()}
    needed = {}
    for table in scanned:
        columns = {each.lower(): each for each in tables[table]}
        wanted: set[str] = set()
        filters = []
        for scan in (scan for name, scan in zip(names, scans, strict=True) if name == table):
            shown = _list(scan.get("Projections"))
            texts = [text.removeprefix(_OPTIONAL) for text in _list(scan.get("Filters"))]
            known = set(columns.values()).issuperset(shown)
            wanted |= {c for c in columns.values() if not known or c in shown or _is_in(c, texts)}
            filters.append(_joined("CONJUNCTION_AND", _conditions(database, splitter, columns, texts)))
        needed[table] = wanted, None if None in filters else _joined("CONJUNCTION_OR", filters)
    return needed


def _is_in(column: str, texts: list[str]) -> bool:
    return any(column.lower() in text.lower() for text in texts)


def _conditions(
    database: MergedDatabase, splitter: Splitter, columns: Mapping[str, str], texts: list[str]
) -> list[Tree]:
    """Return the filters that can be read; without one of them, hosts send more rows than needed, which is harmless."""

    def exact(node: dict[str, Tree]) -> Tree | None:
        """Return a float as a float: DuckDB would read 0.30000000000000004 as a DECIMAL and round it."""
        literal = node.get("literal") or {}
        if literal.get("kind") != "NUMERIC":
            return None
        if not math.isfinite(float(literal["text"])):
            raise Unsplittable("an infinity has no literal")
        return database.expression(f"CAST('{literal['text']}' AS DOUBLE)")

    conditions = []
    for text in texts:
        try:
            read = replaced(database.expression(f"({text})"), exact)
            conditions.append(of_one_row(read, columns, splitter.functions))
        except (Unsplittable, RefusedStatement):
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
