"""`--by phase`: the same verdict as by step, and what each rank takes in each phase."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from probe_cli.cluster.compare.comparison import Comparison
from probe_cli.cluster.compare.facts import Facts
from probe_cli.cluster.compare.straggler import find

__all__ = ["NEEDS", "compare"]

NEEDS = ("steps", "calls", "recent")
PHASES = ("data_wait", "forward", "backward", "optimizer", "other", "rest")
_COLUMNS = {
    "rank": "BIGINT",
    "host": "VARCHAR",
    **dict.fromkeys(PHASES, "DOUBLE"),
    "waited": "DOUBLE",  # by Python in collectives; taken off other and rest
    "longer": "VARCHAR",  # the phase in which it exceeds the median of the others most
    "by": "DOUBLE",
}


def compare(facts: Sequence[Facts], num_steps: int) -> Comparison:
    """One row a rank, and the phase that stands out most in it."""
    found = find(facts, num_steps)
    rows: list[list[object]] = []
    for fact in found.facts:
        phases = found.phases.get(fact.who)
        if phases is None:
            continue
        extra: dict[str, float] = {}
        for name in PHASES:
            others = [value for who, other in found.phases.items() if who != fact.who and (value := other.named(name))]
            mine = phases.named(name)
            is_split = name == "rest" and phases.other is not None  # then forward and other say it better
            if mine is not None and others and not is_split:
                extra[name] = mine - median(others)
        longer = max(extra, key=lambda name: extra[name], default=None)
        values = [phases.named(name) for name in PHASES]
        by = extra[longer] if longer else None
        rows.append([fact.who.rank, fact.who.host, *values, phases.waited, longer, by])
    return Comparison(found.verdict, tuple(_COLUMNS), tuple(_COLUMNS.values()), rows, found.notes)
