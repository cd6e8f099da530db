"""One SELECT over one table of the hosts, its names resolved: what groups.py and rows.py split.

Pure computation on trees. Whatever is not certain raises Unsplittable, and the rows are fetched instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from probe_agent.sql.merging import MergedDatabase

from .functions import Functions
from .tree import Tree, column, expressions, integer, replaced

__all__ = ["OF_ONE_ROW", "Select", "Unsplittable", "of_one_row", "read_select"]

#: Classes of expressions that need nothing but one row, if that holds for what is in them.
OF_ONE_ROW = frozenset(
    ("BETWEEN", "CASE", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "OPERATOR", "TYPE")
)


class Unsplittable(Exception):
    """A SELECT whose parts may not add up to the same answer; says why."""


@dataclass(frozen=True)
class Select:
    """`node` with bare column names, stars expanded; `columns` are the table's by their names in lower case."""

    node: Tree
    table: str
    columns: Mapping[str, str]
    aliases: Mapping[str, Tree]
    functions: Functions

    def is_column(self, node: Tree) -> bool:
        return _name(node) in self.columns

    def meant(self, node: Tree) -> Tree:
        """Return what `node` stands for: an expression in the select list if it is the place or alias of one."""
        if (place := integer(node)) is not None:
            return self.node["select_list"][place - 1]
        return node if self.is_column(node) else self.aliases.get(_name(node), node)

    def of_one_row(self, expression: Tree) -> Tree:
        """Return `expression` if it needs nothing but one row of the table. Raises Unsplittable."""
        return of_one_row(expression, self.columns, self.functions)

    def has_aggregate(self, tree: Tree) -> bool:
        return any(
            node["class"] == "FUNCTION" and node["function_name"].lower() in self.functions.aggregates
            for node in expressions(tree)
        )

    def uses(self, tree: Tree) -> frozenset[str]:
        """Return the table's columns that are in `tree`."""
        return frozenset(self.columns[_name(node)] for node in expressions(tree) if self.is_column(node))


def of_one_row(expression: Tree, columns: Mapping[str, str], functions: Functions) -> Tree:
    """Return `expression` if it needs nothing but the `columns` of one row. Raises Unsplittable."""
    for node in expressions(expression):
        if node["class"] not in OF_ONE_ROW:
            raise Unsplittable(f"{node['class'].lower()} needs more than one row")
        if node["class"] == "COLUMN_REF" and _name(node) not in columns:
            raise Unsplittable(f"{'.'.join(node['column_names'])} is not a column")
        if node["class"] == "FUNCTION":
            if node["function_name"].lower() not in functions.pure:
                raise Unsplittable(f"{node['function_name']} may need more than one row")
            if node.get("schema") or node.get("catalog") or node.get("export_state"):
                raise Unsplittable("a function of a schema may be anything")
    return expression


def read_select(
    node: Tree, tables: Mapping[str, Mapping[str, str]], functions: Functions, database: MergedDatabase
) -> Select:
    """Return the SELECT `node` over one of `tables`, names resolved. Raises Unsplittable."""
    if node.get("type") != "SELECT_NODE" or node["cte_map"]["map"] or node.get("sample"):
        raise Unsplittable("it is more than one SELECT")
    if any(each["class"] == "SUBQUERY" for each in expressions(node)):
        raise Unsplittable("it has subqueries")
    source = node["from_table"]
    table = f"{source.get('schema_name')}.{source.get('table_name')}".lower()
    if source.get("type") != "BASE_TABLE" or table not in tables:
        raise Unsplittable("it does not read one table of the hosts")
    if source.get("catalog_name") or source.get("sample") or source.get("at_clause") or source["column_name_alias"]:
        raise Unsplittable("it does not read the table as it is")
    columns = {each.lower(): each for each in tables[table]}
    *schema, name = table.split(".")
    qualifiers = [[source["alias"].lower()]] if source["alias"] else [[name], [*schema, name]]

    def bare(each: dict[str, Tree]) -> Tree | None:
        if each.get("class") != "COLUMN_REF" or len(each["column_names"]) == 1:
            return None
        *qualifier, name = (part.lower() for part in each["column_names"])
        if qualifier not in qualifiers or name not in columns:
            raise Unsplittable(f"{'.'.join(each['column_names'])} is not a column of {table}")
        return {**each, "column_names": each["column_names"][-1:]}

    node = replaced(node, bare)
    items = [new for item in node["select_list"] for new in _expanded(item, source, database)]
    select = Select({**node, "select_list": items}, table, columns, _aliases(items, columns), functions)
    select.of_one_row(node["where_clause"])
    return select


def _expanded(item: Tree, source: Tree, database: MergedDatabase) -> list[Tree]:
    """Return the columns that a star stands for, any other item as it is."""
    if item["class"] != "STAR":
        return [item]
    if item["replace_list"] or item["rename_list"] or item["expr"] is not None or item["columns"]:
        raise Unsplittable("a star that computes something")
    star = {**database.parsed("SELECT 1"), "select_list": [item], "from_table": source}
    return [column(name) for name, _ in database.described(database.text_of(star))]


def _aliases(items: list[Tree], columns: Mapping[str, str]) -> dict[str, Tree]:
    aliases: dict[str, Tree] = {}
    for item in items:
        alias = str(item.get("alias") or "").lower()
        if alias in aliases or (alias in columns and _name(item) != alias):
            raise Unsplittable(f"{alias} means two things")
        if alias:
            aliases[alias] = item
    return aliases


def _name(node: Tree) -> str:
    """Return the name of a bare reference in lower case, empty for anything else."""
    is_bare = node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1
    return str(node["column_names"][0]).lower() if is_bare else ""
