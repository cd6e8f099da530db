"""Rows in parts: each host sends the first of its own, which are ordered and cut once more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .select import Select, Unsplittable
from .tree import Tree, column, integer, key

if TYPE_CHECKING:
    from probe_agent.sql.merging import MergedDatabase

__all__ = ["split_rows"]


def split_rows(select: Select, max_rows: int | None, database: MergedDatabase) -> tuple[Tree, Tree]:
    """Return the SELECT of the hosts and the merged one, which still lacks its source. Of a host no more than
    `max_rows` and one more are needed. Raises Unsplittable, also when nothing lets hosts send fewer rows."""
    node = select.node
    modifiers = {modifier["type"]: modifier for modifier in node["modifiers"]}
    distinct, orders, limit = (modifiers.pop(f"{kind}_MODIFIER", None) for kind in ("DISTINCT", "ORDER", "LIMIT"))
    if modifiers or node["qualify"] is not None or (distinct and distinct["distinct_on_targets"]):
        raise Unsplittable("it needs all rows")
    sent = {f"c{at}": select.of_one_row(item) for at, item in enumerate(node["select_list"])}
    titled = [column(name, item["alias"]) for name, item in sent.items()]
    by = [_ordered_by(select, order["expression"], sent, distinct is not None) for order in _orders(orders)]
    enough = _enough(limit, max_rows)
    if enough is None and distinct is None:
        raise Unsplittable("all its rows are needed")
    host_ends = [distinct] if distinct else []
    if enough is not None:
        if by:
            host_ends.append(_reordered(orders, [{**sent[name], "alias": ""} for name in by]))
        host_ends += database.parsed(f"SELECT 1 LIMIT {enough}")["modifiers"]
    merged_ends = [distinct, by and _reordered(orders, [column(name) for name in by]), limit]
    items = [{**item, "alias": name} for name, item in sent.items()]
    host = {**node, "select_list": items, "modifiers": host_ends}
    merged = {**node, "select_list": titled, "modifiers": [end for end in merged_ends if end], "where_clause": None}
    return host, merged


def _orders(orders: Tree | None) -> list[Tree]:
    return list(orders["orders"]) if orders else []


def _reordered(orders: Tree, by: list[Tree]) -> Tree:
    return {**orders, "orders": [{**old, "expression": new} for old, new in zip(orders["orders"], by, strict=True)]}


def _ordered_by(select: Select, expression: Tree, sent: dict[str, Tree], is_distinct: bool) -> str:
    """Return the sent column that ORDER BY means: that of a number or an expression, or one more to send."""
    place = integer(expression)
    if place is not None:
        if not 1 <= place <= len(select.node["select_list"]):
            raise Unsplittable("there is no such column")
        return f"c{place - 1}"
    expression = select.of_one_row(select.meant(expression))
    same = key(expression)
    for name, item in sent.items():
        if key(item) == same:
            return name
    if is_distinct:
        raise Unsplittable("DISTINCT is ordered by an expression that is not selected")
    name = f"c{len(sent)}"
    sent[name] = expression
    return name


def _enough(limit: Tree | None, max_rows: int | None) -> int | None:
    """Return how many rows of a host can matter, None for all."""
    most = [] if max_rows is None else [max_rows + 1]
    if limit is None:
        return most[0] if most else None
    if limit.get("limit_type", "ROW_COUNT") != "ROW_COUNT":
        raise Unsplittable("its limit is a share of all rows")
    wanted, skipped = (None if limit[end] is None else integer(limit[end]) for end in ("limit", "offset"))
    if (wanted is None) != (limit["limit"] is None) or (skipped is None) != (limit["offset"] is None):
        raise Unsplittable("its limit is computed")
    most += [] if wanted is None else [wanted]
    return min(most) + (skipped or 0) if most else None
