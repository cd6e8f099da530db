"""Rows as they are in parts: each host sends its own first ones, and they are ordered and cut once more."""

from __future__ import annotations

from .selects import PARTS, Parser, Select, Split, Unsplittable
from .tree import Tree, column, integer, key

__all__ = ["Rows"]


class Rows:
    """One SELECT without aggregates."""

    def __init__(self, parser: Parser, select: Select, titles: list[str], max_rows: int | None) -> None:
        self._parser = parser
        self._select = select
        self._titles = titles
        self._max_rows = max_rows

    def split(self) -> Split:
        select, node = self._select, self._select.node
        if node["qualify"] is not None:
            raise Unsplittable("QUALIFY needs all rows")
        sent = {f"c{at}": select.of_one_row(item) for at, item in enumerate(select.items)}
        distinct: Tree = None
        orders: Tree = None
        limit: Tree = None
        for modifier in node["modifiers"]:
            if modifier["type"] == "DISTINCT_MODIFIER" and not modifier["distinct_on_targets"]:
                distinct = modifier
            elif modifier["type"] == "ORDER_MODIFIER":
                orders = modifier
            elif modifier["type"] == "LIMIT_MODIFIER" and modifier.get("limit_type", "ROW_COUNT") == "ROW_COUNT":
                limit = modifier
            else:
                raise Unsplittable("not all of it can be cut in parts")
        host_orders, merged_orders = [], []
        for order in orders["orders"] if orders else []:
            name = self._ordered_by(order["expression"], sent, distinct is not None)
            host_orders.append({**order, "expression": {**sent[name], "alias": ""}})
            merged_orders.append({**order, "expression": column(name)})
        enough = self._enough(limit)
        host_ends = [distinct] if distinct else []
        if host_orders and enough is not None:
            host_ends.append({**orders, "orders": host_orders})
        if enough is not None:
            host_ends += self._parser.query(f"SELECT 1 LIMIT {enough}")["modifiers"]
        merged_ends = [distinct] if distinct else []
        if merged_orders:
            merged_ends.append({**orders, "orders": merged_orders})
        if limit:
            merged_ends.append(limit)
        where = node["where_clause"]
        host = {
            **node,
            "select_list": [{**item, "alias": name} for name, item in sent.items()],
            "where_clause": None if where is None else select.of_one_row(select.plain(where)),
            "modifiers": host_ends,
        }
        merged = {
            **node,
            "select_list": [column(f"c{at}", title) for at, title in enumerate(self._titles)],
            "from_table": {**node["from_table"], "alias": "", "schema_name": "", "table_name": PARTS},
            "where_clause": None,
            "modifiers": merged_ends,
        }
        return Split(select.table, select.uses(host), host, tuple(sent), merged, False)

    def _ordered_by(self, expression: Tree, sent: dict[str, Tree], distinct: bool) -> str:
        """The sent column that ORDER BY means: a number, an alias, a column of the answer, or one more to send."""
        select = self._select
        place = integer(expression)
        if place is not None:
            if not 1 <= place <= len(select.items):
                raise Unsplittable("there is no such column")
            return f"c{place - 1}"
        if select.is_alias(expression):
            expression = select.aliases[expression["column_names"][0].lower()]
        expression = select.of_one_row(select.plain(expression))
        same = key(expression)
        for name, item in sent.items():
            if key(item) == same:
                return name
        if distinct:
            raise Unsplittable("the order of different rows by something else")
        name = f"c{len(sent)}"
        sent[name] = expression
        return name

    def _enough(self, limit: Tree | None) -> int | None:
        """How many rows of a host can matter."""
        most = None if self._max_rows is None else self._max_rows + 1
        if limit is None:
            return most
        skipped = 0 if limit["offset"] is None else integer(limit["offset"])
        if skipped is None:
            raise Unsplittable("the limit is computed")
        if limit["limit"] is not None:
            wanted = integer(limit["limit"])
            if wanted is None:
                raise Unsplittable("the limit is computed")
            most = wanted if most is None else min(wanted, most)
        return None if most is None else most + skipped
