"""Who came last to each collective, and for how long the others waited.

The end of a synchronous step is the same for all, and so is its duration: the slow rank is the one the others wait for.
Where they wait may be in no row (DDP's reducer waits in C++, inside backward); but when each rank called a collective
is known, for those that C++ called as well, and whoever called it last kept the others waiting.

In each step one collective decides, the one whose ranks came farthest apart: those after it begin together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from .facts import Facts, Who
from .standing_out import median_of_others

__all__ = ["Arrivals", "Met", "arrivals", "by_collective"]

Key = tuple[str, int]
#: A collective is taken when such a part of the ranks that the group seems to have is known to have called it: rows
#: come at another time from each rank, and two of four ranks alone would look like a difference between them.
NEARLY_ALL = 0.75


@dataclass
class Arrivals:
    """For each step and rank: how much later it came than the median of the others, and how long it then waited."""

    late: dict[int, dict[Who, float]] = field(default_factory=lambda: defaultdict(dict))
    waits: dict[int, dict[Who, float]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def steps(self) -> list[int]:
        return sorted(self.late)


@dataclass(frozen=True)
class Met:
    """One collective: the step it was in, and when each rank called it, on one clock."""

    step: int
    op: str
    starts: dict[Who, float]


def by_collective(facts: Sequence[Facts]) -> dict[Key, Met]:
    """Each collective that is known of nearly all its ranks, by group and number."""
    found: dict[Key, Met] = {}
    for fact in facts:
        offset = fact.clock.offset if fact.clock is not None else 0.0
        for call in fact.calls:
            met = found.setdefault(call.key, Met(call.step, call.op, {}))
            met.starts.setdefault(fact.who, call.start - offset)
    most: dict[str, int] = defaultdict(int)
    for (group, _), met in found.items():
        most[group] = max(most[group], len(met.starts))
    return {key: met for key, met in found.items() if len(met.starts) >= max(2, NEARLY_ALL * most[key[0]])}


def arrivals(collectives: Iterable[Met], steps: Collection[int]) -> Arrivals:
    """Of `steps`, those in which ranks met in a collective."""
    wanted, found = set(steps), Arrivals()
    widest: dict[tuple[int, Who], float] = {}
    for met in collectives:
        step, starts = met.step, met.starts
        if step not in wanted:
            continue
        last = max(starts.values())
        spread = last - min(starts.values())
        others = median_of_others(starts)
        for who, start in starts.items():
            if spread > widest.get((step, who), -1.0):
                widest[step, who] = spread
                found.late[step][who] = start - others[who]
                found.waits[step][who] = last - start
    return found
