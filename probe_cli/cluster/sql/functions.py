"""The functions of DuckDB that return the same on every host, and the aggregates.

A function that is not known to be pure runs here, over fetched rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Functions"]

#: DuckDB calls them pure, but they tell about the process they run in.
_OF_THE_PROCESS = ("current_", "pg_", "has_", "inet_", "getenv", "version", "alias", "stats", "json_execute")
#: Macros that only combine their arguments; any other macro hides what it calls.
_PURE_MACROS = ("nullif", "fdiv", "fmod", "date_add", "split_part", "if", "array_to_string")


@dataclass(frozen=True)
class Functions:
    """Names in lower case."""

    pure: frozenset[str]
    aggregates: frozenset[str]

    @classmethod
    def among(cls, listed: Sequence[tuple[str, str, str | None]]) -> Functions:
        """Sort functions by what DuckDB says of them: name, kind, stability."""
        kinds: dict[str, set[tuple[str, str | None]]] = {}
        for name, kind, stability in listed:
            kinds.setdefault(name.lower(), set()).add((kind, stability))
        pure = {name for name, found in kinds.items() if found == {("scalar", "CONSISTENT")}}
        pure = {name for name in pure if not name.startswith(_OF_THE_PROCESS)}
        pure |= {name for name in _PURE_MACROS if {kind for kind, _ in kinds.get(name, ())} == {"macro"}}
        aggregates = {name for name, found in kinds.items() if "aggregate" in {kind for kind, _ in found}}
        return cls(frozenset(pure), frozenset(aggregates))
