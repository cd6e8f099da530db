"""`--by phase`: the same verdict as by step, and what each rank does itself in each phase."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe_cli.cluster.compare.comparison import Comparison
from probe_cli.cluster.compare.facts import Facts
from probe_cli.cluster.compare.phases import PHASES
from probe_cli.cluster.compare.study import study
from probe_cli.cluster.compare.verdict import judge, named

__all__ = ["NEEDS", "compare"]

NEEDS = ("steps", "calls", "recent", "groups")
_COLUMNS = {
    "rank": "BIGINT",
    "host": "VARCHAR",
    **dict.fromkeys(PHASES, "DOUBLE"),  # own time in a step, the mean: without what it stood still in collectives
    "waited": "DOUBLE",  # for other ranks
    "longer": "VARCHAR",  # the phase in which it exceeds the median of the others most
    "by": "DOUBLE",
}


def compare(facts: Sequence[Facts], num_steps: int) -> Comparison:
    """One row a rank, and the phase that stands out most in it."""
    found = study(facts, num_steps)
    own = [{name: _mean(times) for name, times in found.own(at).items()} for at in range(len(found.facts))]
    rows: list[list[object]] = []
    for at, fact in enumerate(found.facts if len(found.analysis.steps) else ()):
        extra: dict[str, float] = {}
        for name in PHASES:
            mine = own[at][name]
            others = [value for other, phases in enumerate(own) if other != at and (value := phases[name]) is not None]
            if mine is not None and others:
                extra[name] = mine - float(np.median(others))
        most = max(extra, key=lambda name: extra[name], default=None)
        waited = float(found.analysis.waited[at].mean())
        times = [own[at][name] for name in PHASES]
        rows.append([fact.who.rank, fact.who.host, *times, waited, most, extra[most] if most else None])
    verdict = judge(found, named(found))
    return Comparison(verdict, tuple(_COLUMNS), tuple(_COLUMNS.values()), rows, found.notes, found)


def _mean(times: np.ndarray) -> float | None:
    known = times[np.isfinite(times)]
    return float(known.mean()) if len(known) else None
