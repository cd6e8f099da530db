"""One time for a whole statement: what reads the clock becomes a constant before anything is sent to a host."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from .tree import Tree, replaced, walk

if TYPE_CHECKING:
    from probe_agent.sql.merging import MergedDatabase

__all__ = ["with_one_time"]

_FUNCTIONS = ("now", "get_current_timestamp", "transaction_timestamp", "today")
_WORDS = ("current_timestamp", "current_date", "localtimestamp", "current_localtimestamp")


def with_one_time(root: Tree, columns: Collection[str], database: MergedDatabase) -> Tree:
    """Return `root` with constants for clocks; a word that is also one of `columns` (in lower case) stays."""

    def clock(node: dict[str, Tree]) -> str:
        name = ""
        if node.get("class") == "FUNCTION" and not (node.get("arguments") or node.get("children")):
            name = node["function_name"].lower()
        elif node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1:
            name = node["column_names"][0].lower()
            name = "" if name in columns else name
        return name if name in _FUNCTIONS + _WORDS else ""

    constants = {}
    for name in dict.fromkeys(filter(None, map(clock, walk(root)))):
        now = name if name in _WORDS else f"{name}()"
        kind, value = database.value(f"SELECT unnest([typeof({now}), {now}::VARCHAR])")
        constants[name] = database.expression(f"CAST('{value}' AS {kind})")

    def constant(node: dict[str, Tree]) -> Tree | None:
        name = clock(node)
        return {**constants[name], "alias": node.get("alias", "")} if name else None

    return replaced(root, constant) if constants else root
