"""The functions of DuckDB that return the same on every host, the aggregates, and the clocks.

A function that is not known to be pure runs here, over fetched rows. A statement has one time: what reads the clock
becomes a constant before anything is sent to a host.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from probe_agent.sql.merging import MergedDatabase

from .tree import Tree, replaced, walk

__all__ = ["Functions", "with_one_time"]

#: DuckDB calls them pure, but they tell about the process they run in.
_OF_THE_PROCESS = ("current_", "pg_", "has_", "inet_", "getenv", "version", "alias", "stats", "json_execute")
#: Macros that only combine their arguments; any other macro hides what it calls.
_PURE_MACROS = ("nullif", "fdiv", "fmod", "date_add", "split_part", "if", "array_to_string")
#: What reads the clock, called and as a word.
_CLOCKS = ("now", "get_current_timestamp", "transaction_timestamp", "today")
_CLOCK_WORDS = ("current_timestamp", "current_date", "localtimestamp", "current_localtimestamp")


@dataclass(frozen=True)
class Functions:
    """Names in lower case."""

    pure: frozenset[str]
    aggregates: frozenset[str]

    @classmethod
    def of(cls, database: MergedDatabase) -> Functions:
        """Sort the functions of `database` by what DuckDB says of them: name, kind, stability."""
        kinds: dict[str, set[tuple[str, str | None]]] = {}
        for name, kind, stability in database.functions():
            kinds.setdefault(name.lower(), set()).add((kind, stability))
        pure = {name for name, found in kinds.items() if found == {("scalar", "CONSISTENT")}}
        pure = {name for name in pure if not name.startswith(_OF_THE_PROCESS)}
        pure |= {name for name in _PURE_MACROS if {kind for kind, _ in kinds.get(name, ())} == {"macro"}}
        aggregates = {name for name, found in kinds.items() if "aggregate" in {kind for kind, _ in found}}
        return cls(frozenset(pure), frozenset(aggregates))


def with_one_time(root: Tree, columns: Collection[str], database: MergedDatabase) -> Tree:
    """Return `root` with constants for clocks; a word that is also one of `columns` (in lower case) stays."""

    def clock(node: dict[str, Tree]) -> str:
        name = ""
        if node.get("class") == "FUNCTION" and not (node.get("arguments") or node.get("children")):
            name = node["function_name"].lower()
        elif node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1:
            name = node["column_names"][0].lower()
            name = "" if name in columns else name
        return name if name in _CLOCKS + _CLOCK_WORDS else ""

    constants = {}
    for name in dict.fromkeys(filter(None, map(clock, walk(root)))):
        now = name if name in _CLOCK_WORDS else f"{name}()"
        kind, value = database.value(f"SELECT unnest([typeof({now}), {now}::VARCHAR])")
        constants[name] = database.expression(f"CAST('{value}' AS {kind})")

    def constant(node: dict[str, Tree]) -> Tree | None:
        name = clock(node)
        return {**constants[name], "alias": node.get("alias", "")} if name else None

    return replaced(root, constant) if constants else root
