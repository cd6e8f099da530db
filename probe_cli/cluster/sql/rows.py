"""Rows in parts: each host sends the first of its own, which are ordered and cut once more.

Hosts send c0, c1, …: the columns of the statement, then what it is ordered by.
"""

from __future__ import annotations

from probe_agent.sql.merging import MergedDatabase

from .select import Select, Unsplittable
from .tree import Tree, column, integer, place

__all__ = ["split_rows"]


def split_rows(select: Select, max_rows: int | None, database: MergedDatabase) -> tuple[Tree, Tree]:
    """Return the SELECT of the hosts and the merged one, which still lacks its source. Of a host no more than
    `max_rows` and one more are needed. Raises Unsplittable, also when nothing lets hosts send fewer rows."""
    node = select.node
    ends = {modifier["type"]: modifier for modifier in node["modifiers"]}
    distinct, order, limit = (ends.pop(f"{kind}_MODIFIER", None) for kind in ("DISTINCT", "ORDER", "LIMIT"))
    if ends or node["qualify"] is not None or (distinct and distinct["distinct_on_targets"]):
        raise Unsplittable("it needs all rows")
    sent: dict[str, Tree] = {}
    items = [place(select.of_one_row(item), sent) for item in node["select_list"]]
    num_selected = len(sent)
    by = [place(select.of_one_row(select.meant(each["expression"])), sent) for each in (order or {}).get("orders", ())]
    if distinct and len(sent) > num_selected:
        raise Unsplittable("DISTINCT is ordered by an expression that is not selected")
    enough = _enough(limit, max_rows)
    if enough is None and distinct is None:
        raise Unsplittable("all its rows are needed")
    expressions = list(sent.values())
    cut = [] if enough is None else database.parsed(f"SELECT 1 LIMIT {enough}")["modifiers"]
    host = {
        **node,
        "select_list": [{**each, "alias": f"c{at}"} for at, each in enumerate(expressions)],
        "modifiers": _ends(distinct, order, [expressions[at] for at in by] if cut else [], *cut),
    }
    merged = {
        **node,
        "select_list": [column(f"c{at}", item["alias"]) for at, item in zip(items, node["select_list"], strict=True)],
        "where_clause": None,
        "modifiers": _ends(distinct, order, [column(f"c{at}") for at in by], limit),
    }
    return host, merged


def _ends(distinct: Tree, order: Tree, by: list[Tree], *limit: Tree) -> list[Tree]:
    """Return the modifiers of a SELECT, ordered `by` if that is not empty."""
    if by:
        order = {**order, "orders": [{**old, "expression": new} for old, new in zip(order["orders"], by, strict=True)]}
    return [end for end in (distinct, by and order, *limit) if end]


def _enough(limit: Tree | None, max_rows: int | None) -> int | None:
    """Return how many rows of a host can matter, None for all."""
    ends = {each: (limit or {}).get(each) for each in ("limit", "offset")}
    wanted, skipped = map(integer, ends.values())
    is_computed = any(end is not None and integer(end) is None for end in ends.values())
    if is_computed or (limit or {}).get("limit_type", "ROW_COUNT") != "ROW_COUNT":
        raise Unsplittable("its limit is computed")
    most = [each for each in (wanted, None if max_rows is None else max_rows + 1) if each is not None]
    return min(most) + (skipped or 0) if most else None
