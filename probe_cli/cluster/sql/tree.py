"""DuckDB's syntax tree of a query: finding what is in it and replacing parts of it.

The decoded JSON of `json_serialize_sql`, so a statement means here what it means to DuckDB. A tree is never changed in
place. Expressions are objects with a `class`; queries have a `type` that ends in _NODE.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Tree", "arguments", "column", "expressions", "integer", "key", "place", "replaced", "tables_named", "walk"]

Tree = Any  # decoded JSON in DuckDB's format


def walk(tree: Tree) -> Iterator[dict[str, Tree]]:
    """Yield every object in `tree`, inner ones first."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from walk(value)
        yield tree
    elif isinstance(tree, list):
        for value in tree:
            yield from walk(value)


def expressions(tree: Tree) -> Iterator[dict[str, Tree]]:
    """Yield every expression in `tree`, inner ones first."""
    return (node for node in walk(tree) if "class" in node)


def replaced(tree: Tree, change: Callable[[dict[str, Tree]], Tree | None]) -> Tree:
    """Return `tree` with each object for which `change` returns one replaced by it; outer objects are tried first."""
    if isinstance(tree, dict):
        new = change(tree)
        return {name: replaced(value, change) for name, value in tree.items()} if new is None else new
    return [replaced(value, change) for value in tree] if isinstance(tree, list) else tree


def key(expression: Tree) -> str:
    """Return a text that equal expressions share, whatever their aliases, positions and the case of their names."""

    def bare(tree: Tree) -> Tree:
        if isinstance(tree, dict):
            if names := tree.get("column_names"):
                return [name.lower() for name in names]
            incidental = ("alias", "query_location", "query_location_length")
            return {name: bare(value) for name, value in tree.items() if name not in incidental}
        return [bare(value) for value in tree] if isinstance(tree, list) else tree

    return json.dumps(bare(expression), sort_keys=True)


def place(expression: Tree, among: dict[str, Tree]) -> int:
    """Return the place of `expression`, which is added, without its alias, where it is not yet one of the others."""
    same = key(expression)
    among.setdefault(same, {**expression, "alias": ""})
    return list(among).index(same)


def column(name: str, alias: str = "") -> Tree:
    """Return a reference to the column `name`."""
    return {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": alias, "column_names": [name]}


def arguments(function: Tree) -> list[Tree]:
    """Return the arguments of a function call; DuckDB 1.5 calls them children."""
    if "arguments" in function:
        return [argument["expression"] for argument in function["arguments"]]
    return list(function["children"])


def integer(expression: Tree) -> int | None:
    """Return the value of an integer literal, None for anything else."""
    if not isinstance(expression, dict) or expression.get("class") != "CONSTANT":
        return None
    if "literal" in expression:
        return int(expression["literal"]["text"]) if expression["literal"]["kind"] == "INTEGER" else None
    value = expression["value"]  # DuckDB 1.5
    return int(value["value"]) if value["type"]["id"].endswith(("INT", "INTEGER")) else None


def tables_named(tree: Tree) -> list[str]:
    """Return the tables that `tree` names with their schema, in lower case; names without one are its own CTEs."""
    names = [
        f"{node['schema_name']}.{node['table_name']}".lower()
        for node in walk(tree)
        if node.get("type") == "BASE_TABLE" and node.get("schema_name")
    ]
    return list(dict.fromkeys(names))
