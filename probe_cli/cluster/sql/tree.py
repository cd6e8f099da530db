"""A SELECT as DuckDB's own syntax tree: finding what is in it, and replacing parts of it.

Decoded JSON of `json_serialize_sql`, so that the words of a statement mean here what they mean to DuckDB. A tree is
never changed in place. Expressions are objects with a `class`; queries have a `type` that ends in _NODE.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

__all__ = [
    "Tree",
    "arguments",
    "column",
    "expressions",
    "integer",
    "key",
    "replaced",
    "tables_named",
    "walk",
]

Tree = Any  # decoded JSON whose shape is DuckDB's

#: What two equal expressions may differ in.
_INCIDENTAL = ("alias", "query_location", "query_location_length")


def walk(tree: Tree) -> Iterator[dict[str, Tree]]:
    """Every object in `tree`, inner ones first."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from walk(value)
        yield tree
    elif isinstance(tree, list):
        for value in tree:
            yield from walk(value)


def expressions(tree: Tree) -> Iterator[dict[str, Tree]]:
    """Every expression in `tree`, inner ones first."""
    return (node for node in walk(tree) if "class" in node)


def replaced(tree: Tree, change: Callable[[dict[str, Tree]], Tree | None]) -> Tree:
    """`tree` with each object for which `change` gives something replaced by that; outer ones are looked at first."""
    if isinstance(tree, dict):
        new = change(tree)
        if new is not None:
            return new
        return {name: replaced(value, change) for name, value in tree.items()}
    if isinstance(tree, list):
        return [replaced(value, change) for value in tree]
    return tree


def key(expression: Tree) -> str:
    """The same text for expressions that say the same, apart from aliases and places; names in lower case."""

    def plain(tree: Tree) -> Tree:
        if isinstance(tree, dict):
            names = tree.get("column_names")
            if names:
                return {"class": "COLUMN_REF", "column_names": [name.lower() for name in names]}
            return {name: plain(value) for name, value in tree.items() if name not in _INCIDENTAL}
        return [plain(value) for value in tree] if isinstance(tree, list) else tree

    return json.dumps(plain(expression), sort_keys=True)


def column(name: str, alias: str = "") -> Tree:
    """A reference to the column `name`."""
    return {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": alias, "column_names": [name]}


def arguments(function: Tree) -> list[Tree]:
    """What a function is called with; DuckDB 1.5 calls them children."""
    if "arguments" in function:
        return [argument["expression"] for argument in function["arguments"]]
    return list(function["children"])


def integer(expression: Tree) -> int | None:
    """The whole number that `expression` is, None when it is something else."""
    if not isinstance(expression, dict) or expression.get("class") != "CONSTANT":
        return None
    literal, value = expression.get("literal"), expression.get("value")
    if literal is not None:
        return int(literal["text"]) if literal["kind"] == "INTEGER" else None
    found = value.get("value") if isinstance(value, dict) else None  # DuckDB 1.5
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def tables_named(tree: Tree) -> list[str]:
    """The tables that `tree` names with their schema, in lower case, each once. Others can only be its own."""
    names = [
        f"{node['schema_name']}.{node['table_name']}".lower()
        for node in walk(tree)
        if node.get("type") == "BASE_TABLE" and node.get("schema_name")
    ]
    return list(dict.fromkeys(names))
