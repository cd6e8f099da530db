"""Splits a SELECT over one table into what each host computes and what puts the parts together.

Two shapes are split: groups of aggregates, and rows (filtered, ordered, cut). Whatever is not surely right raises
Unsplittable, and the rows are fetched instead. Plain computing on trees; nothing is contacted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .aggregates import OVER_DISTINCT, RECIPES
from .functions import Functions
from .tree import Tree, arguments, column, expressions, integer, key, replaced

if TYPE_CHECKING:
    from probe_agent.sql import MergedDatabase

__all__ = ["Split", "Splitter", "Unsplittable"]

#: Expressions that compute something out of the values of one row, if what is in them does.
_OF_ONE_ROW = {
    "BETWEEN",
    "CASE",
    "CAST",
    "COLUMN_REF",
    "COMPARISON",
    "CONJUNCTION",
    "CONSTANT",
    "FUNCTION",
    "OPERATOR",
    "TYPE",
}
_PARTS = "parts"


class Unsplittable(Exception):
    """This is not surely the same when it is computed in parts; says why."""


@dataclass(frozen=True)
class Split:
    """`host` runs on every host, `merged` here over the table `parts`, which holds the `columns` that they send."""

    table: str
    uses: frozenset[str]
    host: Tree
    columns: tuple[str, ...]
    merged: Tree
    aggregated: bool

    def merged_over(self, parts: str) -> Tree:
        """`merged`, with the parts in the table `parts`."""
        schema, _, name = parts.rpartition(".")

        def named(node: dict[str, Tree]) -> Tree | None:
            if node.get("type") == "BASE_TABLE" and node["table_name"] == _PARTS and not node["schema_name"]:
                return {**node, "schema_name": schema, "table_name": name, "qualified_name": {"path": [schema, name]}}
            return None

        return replaced(self.merged, named)


@dataclass
class _Select:
    """One SELECT: the node, the table it reads, and what its names mean."""

    node: Tree
    table: str
    names: Mapping[str, str]
    qualifiers: tuple[tuple[str, ...], ...]
    functions: Functions
    items: list[Tree] = field(default_factory=list)
    aliases: dict[str, Tree] = field(default_factory=dict)

    def plain(self, expression: Tree) -> Tree:
        """`expression` with the table's columns by their bare names."""

        def bare(node: dict[str, Tree]) -> Tree | None:
            if node.get("class") != "COLUMN_REF":
                return None
            *before, name = node["column_names"]
            if not before:
                return None
            if tuple(part.lower() for part in before) not in self.qualifiers or name.lower() not in self.names:
                raise Unsplittable(f"{'.'.join(node['column_names'])} is no column of {self.table}")
            return {**node, "column_names": [name]}

        return replaced(expression, bare)

    def is_column(self, node: Tree) -> bool:
        return (
            node.get("class") == "COLUMN_REF"
            and len(node["column_names"]) == 1
            and node["column_names"][0].lower() in self.names
        )

    def is_alias(self, node: Tree) -> bool:
        return (
            node.get("class") == "COLUMN_REF"
            and len(node["column_names"]) == 1
            and node["column_names"][0].lower() in self.aliases
        )

    def of_one_row(self, expression: Tree) -> Tree:
        """`expression`, which takes nothing but a row of the table. Raises Unsplittable."""
        for node in expressions(expression):
            self._check(node)
            if node["class"] == "COLUMN_REF" and not self.is_column(node):
                raise Unsplittable(f"{'.'.join(node['column_names'])} is no column of {self.table}")
            if node["class"] == "FUNCTION" and node["function_name"].lower() not in self.functions.pure:
                raise Unsplittable(f"{node['function_name']} does not go by one row")
        return expression

    def _check(self, node: Tree) -> None:
        if node["class"] not in _OF_ONE_ROW:
            raise Unsplittable(f"{node['class'].lower()} does not go by one row")
        if node["class"] == "FUNCTION" and (node.get("schema") or node.get("catalog") or node.get("export_state")):
            raise Unsplittable("a function of a schema may be anything")

    def has_aggregate(self, expression: Tree) -> bool:
        return any(
            node["class"] == "FUNCTION" and node["function_name"].lower() in self.functions.aggregates
            for node in expressions(expression)
        )


class Splitter:
    """Splits against the tables known to `database`, whose columns are in `tables`."""

    def __init__(self, database: MergedDatabase, tables: Mapping[str, Mapping[str, str]]) -> None:
        self._database = database
        self._tables = tables
        self._functions = Functions.among(tuple(database.functions()))

    def split(self, node: Tree, names: list[str] | None, max_rows: int | None) -> Split:
        """How to compute the SELECT `node` in parts; its columns are called `names` (None: as they call themselves).
        With `max_rows` more rows than that are not needed. Raises Unsplittable."""
        select = self._read(node)
        if names is not None and len(names) != len(select.items):
            raise Unsplittable("its columns cannot be told apart")
        titles = names or [self._title(item) for item in select.items]
        ordered = [node["modifiers"], node["having"], node["qualify"]]
        if (
            node["group_expressions"]
            or node["group_sets"]
            or node["aggregate_handling"] != "STANDARD_HANDLING"
            or node["having"] is not None
            or any(select.has_aggregate(each) for each in (select.items, ordered))
        ):
            return _Groups(self, select, titles).split()
        return _Rows(self, select, titles, max_rows).split()

    def expression(self, sql: str) -> Tree:
        """The tree of one expression."""
        return self._database.parsed(f"SELECT {sql}")["statements"][0]["node"]["select_list"][0]

    def of_one_row(self, table: str, expression: Tree) -> Tree:
        """`expression` when it takes nothing but a row of `table`. Raises Unsplittable."""
        names = {each.lower(): each for each in self._tables[table]}
        return _Select({}, table, names, (), self._functions).of_one_row(expression)

    def query(self, sql: str) -> Tree:
        """The tree of one query."""
        return self._database.parsed(sql)["statements"][0]["node"]

    def _title(self, item: Tree) -> str:
        if item.get("alias"):
            return str(item["alias"])
        if item["class"] == "COLUMN_REF":
            return str(item["column_names"][-1])
        statement = {"node": {**self.query("SELECT 1"), "select_list": [item]}, "named_param_map": []}
        text = self._database.text_of({"error": False, "statements": [statement]})
        return text.removeprefix("SELECT ")

    def _read(self, node: Tree) -> _Select:
        """What the SELECT is about: one whole table that the hosts have."""
        if node.get("type") != "SELECT_NODE" or node["cte_map"]["map"] or node.get("sample"):
            raise Unsplittable("it is more than one SELECT")
        source = node["from_table"]
        name = f"{source.get('schema_name')}.{source.get('table_name')}".lower()
        if source.get("type") != "BASE_TABLE" or name not in self._tables:
            raise Unsplittable("it reads more than one table of the hosts")
        if source.get("catalog_name") or source.get("sample") or source.get("at_clause") or source["column_name_alias"]:
            raise Unsplittable("it does not take the table as it is")
        schema, _, table = name.rpartition(".")
        own = ((source["alias"].lower(),),) if source["alias"] else ((table,), (schema, table))
        names = {each.lower(): each for each in self._tables[name]}
        select = _Select(node, name, names, own, self._functions)
        select.items = [new for item in node["select_list"] for new in self._expanded(select, item)]
        for item in select.items:
            alias = str(item.get("alias") or "").lower()
            if alias and alias in names and not (select.is_column(item) and item["column_names"][0].lower() == alias):
                raise Unsplittable(f"{alias} means a column and something else")
            if alias:
                if alias in select.aliases:
                    raise Unsplittable(f"{alias} means two things")
                select.aliases[alias] = item
        return select

    def _expanded(self, select: _Select, item: Tree) -> list[Tree]:
        """The columns that a star stands for; anything else as it is."""
        if item["class"] != "STAR":
            return [select.plain(item)]
        if item["replace_list"] or item["rename_list"] or item["expr"] is not None or item["columns"]:
            raise Unsplittable("a star that computes something")
        node = {**self.query("SELECT 1"), "select_list": [item], "from_table": select.node["from_table"]}
        text = self._database.text_of({"error": False, "statements": [{"node": node, "named_param_map": []}]})
        return [column(name) for name, _ in self._database.described(text)]


class _Groups:
    """Aggregates by group: the hosts send one row a group, with the parts of every aggregate."""

    def __init__(self, splitter: Splitter, select: _Select, titles: list[str]) -> None:
        self._splitter = splitter
        self._select = select
        self._titles = titles
        #: What the hosts group by, by key; the first `_num_own` of them is what the statement groups by.
        self._groups: dict[str, Tree] = {}
        self._parts: list[Tree] = []
        self._shifts: dict[str, str] = {}
        self._merged: dict[str, Tree] = {}

    def split(self) -> Split:
        select, node = self._select, self._select.node
        for group in self._grouped_by():
            if group["class"] == "CONSTANT":
                raise Unsplittable("a group of a constant")
            self._groups.setdefault(key(group), select.of_one_row(group))
        own = [f"g{at}" for at in range(len(self._groups))]
        self._own = dict(zip(self._groups, own, strict=True))
        items = [
            {**self._rewritten(item), "alias": title} for item, title in zip(select.items, self._titles, strict=True)
        ]
        ends = {name: self._rewritten(self._ends(name)) for name in ("modifiers", "having", "qualify")}
        where = node["where_clause"]
        host_groups = [{**group, "alias": f"g{at}"} for at, group in enumerate(self._groups.values())]
        host_parts = [{**part, "alias": f"a{at}"} for at, part in enumerate(self._parts)]
        bare = [{**group, "alias": ""} for group in host_groups]
        host = {
            **node,
            "select_list": [*host_groups, *host_parts],
            "where_clause": None if where is None else select.of_one_row(select.plain(where)),
            "group_expressions": bare,
            "group_sets": [list(range(len(bare)))] if bare else [],
            "aggregate_handling": "STANDARD_HANDLING",
            "having": None,
            "qualify": None,
            "modifiers": [],
        }
        if not host["select_list"]:
            raise Unsplittable("there is nothing to compute")
        merged = {
            **node,
            **ends,
            "select_list": items,
            "from_table": self._source(own),
            "where_clause": None,
            "group_expressions": [column(name) for name in own],
            "group_sets": [list(range(len(own)))] if own else [],
            "aggregate_handling": "STANDARD_HANDLING",
        }
        columns = tuple(str(each["alias"]) for each in host["select_list"])
        return Split(select.table, _uses(select, host), host, columns, merged, True)

    def _grouped_by(self) -> list[Tree]:
        select, node = self._select, self._select.node
        if node["aggregate_handling"] == "FORCE_AGGREGATES":
            if node["group_expressions"]:
                raise Unsplittable("two kinds of GROUP BY")
            return [item for item in select.items if not select.has_aggregate(item)]
        if node["aggregate_handling"] != "STANDARD_HANDLING":
            raise Unsplittable("an unknown kind of GROUP BY")
        groups = node["group_expressions"]
        if node["group_sets"] not in ([], [list(range(len(groups)))]):
            raise Unsplittable("several sets of groups")
        return [self._meant(group) for group in groups]

    def _meant(self, group: Tree) -> Tree:
        """What GROUP BY means: a number is a column of the answer, a name is one of the table or else an alias."""
        select = self._select
        place = integer(group)
        if place is not None:
            if not 1 <= place <= len(select.items):
                raise Unsplittable("there is no such column")
            return select.items[place - 1]
        group = select.plain(group)
        if not select.is_column(group) and select.is_alias(group):
            return select.aliases[group["column_names"][0].lower()]
        return group

    def _ends(self, name: str) -> Tree:
        """ORDER BY, LIMIT, HAVING, QUALIFY with the table's columns by their bare names."""
        return self._select.plain(self._select.node[name])

    def _rewritten(self, tree: Tree) -> Tree:
        """`tree` over the parts instead of the table."""
        return replaced(tree, self._over_parts)

    def _over_parts(self, node: dict[str, Tree]) -> Tree | None:
        kind = node.get("class")
        if kind is None:
            return None
        select = self._select
        same = key(node)
        if same in self._own:
            return column(self._own[same], node.get("alias", ""))
        if kind == "FUNCTION":
            name = node["function_name"].lower()
            if name in select.functions.aggregates:
                if same not in self._merged:
                    self._merged[same] = self._aggregate(node, name)
                return {**self._merged[same], "alias": node.get("alias", "")}
            if name not in select.functions.pure:
                raise Unsplittable(f"{name} is not known")
        elif kind == "COLUMN_REF":
            if not select.is_alias(node):
                raise Unsplittable(f"{'.'.join(node['column_names'])} is not grouped by")
            return node
        elif kind == "STAR":
            if not node.get("columns") or node.get("expr") is not None:  # ORDER BY ALL
                raise Unsplittable("a star among aggregates")
            return node
        elif kind not in _OF_ONE_ROW and kind != "WINDOW":
            raise Unsplittable(f"{kind.lower()} among aggregates")
        return None

    def _aggregate(self, node: Tree, name: str) -> Tree:
        select = self._select
        over = [select.of_one_row(argument) for argument in arguments(node)]
        filter_ = None if node["filter"] is None else select.of_one_row(node["filter"])
        if node["order_bys"]["orders"] or node.get("schema") or node.get("export_state"):
            raise Unsplittable("an aggregate in an order")
        if node["distinct"] or name in OVER_DISTINCT:
            if name not in ("count", "sum", "avg", "mean", "min", "max", *OVER_DISTINCT):
                raise Unsplittable(f"{name} over different values")
            return self._over_values(node)
        recipe = RECIPES.get(name)
        if recipe is None or recipe.num_arguments != len(over):
            raise Unsplittable(f"{name} is not put together from parts")
        first = len(self._parts)
        for part in recipe.parts:
            self._parts.append({**self._filled(part, over), "filter": filter_})
        names = {letter: f"a{first + at}" for at, letter in enumerate("abc"[: len(recipe.parts)])}
        if recipe.shifted:
            names["s"] = f"s{first}"
            self._shifts[names["s"]] = names["b"]
        return self._splitter.expression(recipe.merged.format(**names))

    def _filled(self, part: str, over: list[Tree]) -> Tree:
        """The aggregate `part` over these arguments."""
        template = self._splitter.expression(part.format(*(f"_{at}" for at in range(len(over)))))
        values = {f"_{at}": each for at, each in enumerate(over)}

        def fill(node: dict[str, Tree]) -> Tree | None:
            return values.get(node["column_names"][0]) if node.get("class") == "COLUMN_REF" else None

        return replaced(template, fill)

    def _over_values(self, node: Tree) -> Tree:
        """An aggregate over different values: the hosts group by its arguments too, and it is computed here."""

        def sent(expression: Tree) -> Tree:
            same = key(expression)
            self._groups.setdefault(same, {**expression, "alias": ""})
            return column(f"g{list(self._groups).index(same)}")

        over = {id(argument): sent(argument) for argument in arguments(node)}
        if node["filter"] is not None:
            over[id(node["filter"])] = sent(node["filter"])
        return {**replaced(node, lambda each: over.get(id(each))), "alias": ""}

    def _source(self, own: list[str]) -> Tree:
        """The parts, with what recipes need to know of all parts of a group."""
        by = f"PARTITION BY {', '.join(own)}" if own else ""
        shifts = "".join(f", avg({mean}) OVER ({by}) AS {shift}" for shift, mean in self._shifts.items())
        query = f"SELECT * FROM (SELECT *{shifts} FROM {_PARTS}) AS p" if shifts else f"SELECT * FROM {_PARTS}"
        return self._splitter.query(query)["from_table"]


class _Rows:
    """Rows as they are: each host sends its own first ones, they are ordered and cut once more."""

    def __init__(self, splitter: Splitter, select: _Select, titles: list[str], max_rows: int | None) -> None:
        self._splitter = splitter
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
            host_ends += self._splitter.query(f"SELECT 1 LIMIT {enough}")["modifiers"]
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
            "from_table": {**node["from_table"], "alias": "", "schema_name": "", "table_name": _PARTS},
            "where_clause": None,
            "modifiers": merged_ends,
        }
        return Split(select.table, _uses(select, host), host, tuple(sent), merged, False)

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


def _uses(select: _Select, host: Tree) -> frozenset[str]:
    return frozenset(
        select.names[node["column_names"][0].lower()] for node in expressions(host) if select.is_column(node)
    )
