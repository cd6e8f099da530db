"""One SELECT over one table: what its names mean, and which of its expressions take nothing but a row.

Plain computing on trees; nothing is contacted. What is not surely known raises Unsplittable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .functions import Functions
from .tree import Tree, expressions, replaced

if TYPE_CHECKING:
    from probe_agent.sql.merging import MergedDatabase

__all__ = ["OF_ONE_ROW", "PARTS", "Parser", "Select", "Split", "Unsplittable"]

#: Expressions that compute something out of the values of one row, if what is in them does.
OF_ONE_ROW = {
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
#: What `Split.merged` calls the table of the parts.
PARTS = "parts"


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
            if node.get("type") == "BASE_TABLE" and node["table_name"] == PARTS and not node["schema_name"]:
                return {**node, "schema_name": schema, "table_name": name, "qualified_name": {"path": [schema, name]}}
            return None

        return replaced(self.merged, named)


class Parser:
    """Makes trees of SQL."""

    def __init__(self, database: MergedDatabase) -> None:
        self._database = database

    def expression(self, sql: str) -> Tree:
        """The tree of one expression."""
        return self._database.parsed(f"SELECT {sql}")["statements"][0]["node"]["select_list"][0]

    def query(self, sql: str) -> Tree:
        """The tree of one query."""
        return self._database.parsed(sql)["statements"][0]["node"]


@dataclass
class Select:
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
        if node["class"] not in OF_ONE_ROW:
            raise Unsplittable(f"{node['class'].lower()} does not go by one row")
        if node["class"] == "FUNCTION" and (node.get("schema") or node.get("catalog") or node.get("export_state")):
            raise Unsplittable("a function of a schema may be anything")

    def has_aggregate(self, expression: Tree) -> bool:
        return any(
            node["class"] == "FUNCTION" and node["function_name"].lower() in self.functions.aggregates
            for node in expressions(expression)
        )

    def uses(self, host: Tree) -> frozenset[str]:
        """The table's columns that are in `host`."""
        return frozenset(
            self.names[node["column_names"][0].lower()] for node in expressions(host) if self.is_column(node)
        )
