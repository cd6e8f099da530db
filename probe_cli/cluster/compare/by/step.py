"""`--by step`: who holds the job up, and with what."""

from __future__ import annotations

from collections.abc import Sequence

from probe_cli.cluster.compare.comparison import Comparison
from probe_cli.cluster.compare.facts import Facts
from probe_cli.cluster.compare.straggler import find

__all__ = ["NEEDS", "compare"]

NEEDS = ("steps", "calls", "recent")
_COLUMNS = {
    "rank": "BIGINT",
    "host": "VARCHAR",
    "pid": "BIGINT",
    "steps": "BIGINT",
    "duration": "DOUBLE",  # of a step, median
    "own": "DOUBLE",  # of it without the wait
    "wait": "DOUBLE",  # for the last to come to a collective
    "behind": "DOUBLE",  # the median of the other ranks
    "often": "DOUBLE",  # in which part of the steps by enough to count
    "score": "DOUBLE",  # behind, in units of what the others scatter
}


def compare(facts: Sequence[Facts], num_steps: int) -> Comparison:
    """One row a rank, the one that is farthest behind first."""
    found = find(facts, num_steps)
    rows: list[list[object]] = []
    for fact in found.facts:
        who, phases = fact.who, found.phases.get(fact.who)
        standing, wait = found.standings.get(who), found.wait(who)
        duration = phases.duration if phases else None
        own = duration - wait if duration is not None and wait is not None else None
        num = len({step.number for step in fact.steps} & set(found.steps))
        behind: list[float | None] = [None, None, None]
        if standing:
            behind = [standing.effect, standing.frequency, standing.score]
        rows.append([who.rank, who.host, who.pid, num, duration, own, wait, *behind])
    rows.sort(key=lambda row: -_number(row[7]))
    return Comparison(found.verdict, tuple(_COLUMNS), tuple(_COLUMNS.values()), rows, found.notes)


def _number(value: object) -> float:
    return value if isinstance(value, float) else float("-inf")
