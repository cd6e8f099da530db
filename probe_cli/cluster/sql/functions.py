"""Which of DuckDB's functions give the same wherever they run, and which are aggregates.

What is not known to be harmless is not sent to the hosts: it runs here, over rows that were fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

__all__ = ["CLOCKS", "Functions"]

#: Functions and words that read the clock: a statement has one time, so they become constants before it is split.
CLOCKS = (
    "now",
    "current_timestamp",
    "get_current_timestamp",
    "transaction_timestamp",
    "current_date",
    "today",
    "localtimestamp",
    "current_localtimestamp",
)
#: Called harmless by DuckDB, but they tell of the place they run at.
_OF_THE_PLACE = ("current_", "pg_", "has_", "inet_", "getenv", "version", "alias", "stats", "json_execute")
#: Macros in name only: nothing but an expression of their arguments.
_MACROS = ("nullif", "fdiv", "fmod", "date_add", "split_part", "if", "array_to_string")


@dataclass(frozen=True)
class Functions:
    """Names in lower case. What is neither may be anything: a macro hides what it calls."""

    pure: frozenset[str]
    aggregates: frozenset[str]

    @classmethod
    @cache
    def among(cls, listed: tuple[tuple[str, str, str | None], ...]) -> Functions:
        """Told apart by what DuckDB says of each: name, kind, stability."""
        kinds: dict[str, set[tuple[str, str | None]]] = {}
        for name, kind, stability in listed:
            kinds.setdefault(name.lower(), set()).add((kind, stability))
        pure = {
            name
            for name, found in kinds.items()
            if found == {("scalar", "CONSISTENT")} and not name.startswith(_OF_THE_PLACE)
        }
        aggregates = {name for name, found in kinds.items() if "aggregate" in {kind for kind, _ in found}}
        return cls(frozenset(pure | _known(_MACROS, kinds)), frozenset(aggregates))


def _known(names: Sequence[str], kinds: dict[str, set[tuple[str, str | None]]]) -> set[str]:
    return {name for name in names if {kind for kind, _ in kinds.get(name, ())} == {"macro"}}
