"""Splits a SELECT over one table into what each host computes and what puts the parts together.

Two shapes are split: groups of aggregates (groups.py), and rows, filtered, ordered, cut (rows.py). Whatever is not
surely right raises Unsplittable, and the rows are fetched instead. Plain computing on trees; nothing is contacted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .functions import Functions
from .groups import Groups
from .rows import Rows
from .selects import Parser, Select, Split, Unsplittable
from .tree import Tree, column

if TYPE_CHECKING:
    from probe_agent.sql.merging import MergedDatabase

__all__ = ["Split", "Splitter", "Unsplittable"]


class Splitter(Parser):
    """Splits against the tables known to `database`, whose columns are in `tables`."""

    def __init__(self, database: MergedDatabase, tables: Mapping[str, Mapping[str, str]]) -> None:
        super().__init__(database)
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
            return Groups(self, select, titles).split()
        return Rows(self, select, titles, max_rows).split()

    def of_one_row(self, table: str, expression: Tree) -> Tree:
        """`expression` when it takes nothing but a row of `table`. Raises Unsplittable."""
        names = {each.lower(): each for each in self._tables[table]}
        return Select({}, table, names, (), self._functions).of_one_row(expression)

    def _title(self, item: Tree) -> str:
        if item.get("alias"):
            return str(item["alias"])
        if item["class"] == "COLUMN_REF":
            return str(item["column_names"][-1])
        statement = {"node": {**self.query("SELECT 1"), "select_list": [item]}, "named_param_map": []}
        text = self._database.text_of({"error": False, "statements": [statement]})
        return text.removeprefix("SELECT ")

    def _read(self, node: Tree) -> Select:
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
        select = Select(node, name, names, own, self._functions)
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

    def _expanded(self, select: Select, item: Tree) -> list[Tree]:
        """The columns that a star stands for; anything else as it is."""
        if item["class"] != "STAR":
            return [select.plain(item)]
        if item["replace_list"] or item["rename_list"] or item["expr"] is not None or item["columns"]:
            raise Unsplittable("a star that computes something")
        node = {**self.query("SELECT 1"), "select_list": [item], "from_table": select.node["from_table"]}
        text = self._database.text_of({"error": False, "statements": [{"node": node, "named_param_map": []}]})
        return [column(name) for name, _ in self._database.described(text)]
