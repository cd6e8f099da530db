"""`--by step`: who holds the job up, with what, and what that costs; `--by phase`: the same verdict, and what each rank
does itself in each phase."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe_cli.cluster.compare.comparison import Comparison
from probe_cli.cluster.compare.facts import Facts
from probe_cli.cluster.compare.named import named, who_text
from probe_cli.cluster.compare.phases import PHASES
from probe_cli.cluster.compare.study import Study, study
from probe_cli.cluster.compare.verdict import judge
from probe_cli.cluster.delays.costs import Cost
from probe_cli.text import ranks_text

__all__ = ["NEEDS", "compare", "compare_phases"]

NEEDS = ("steps", "calls", "recent", "groups")
_COLUMNS = {
    "who": "VARCHAR",
    "ranks": "VARCHAR",
    "rank": "BIGINT",  # NULL of several
    "pid": "BIGINT",
    "host": "VARCHAR",  # NULL of ranks on several
    "cost": "DOUBLE",  # seconds a step that the job would save
    "share": "DOUBLE",  # part of the job's time
    "low": "DOUBLE",  # its 95 % confidence interval
    "high": "DOUBLE",
    "often": "DOUBLE",  # in which part of the steps
    "since": "BIGINT",  # step; NULL: from the beginning
    "phase": "VARCHAR",  # in which they take longer than their peers
    "where": "VARCHAR",  # between which collectives
    "own": "DOUBLE",  # seconds a step that they did something themselves (median of the steps, mean of the ranks)
    "waited": "DOUBLE",  # and waited for other ranks
}
_PHASE_COLUMNS = {
    "rank": "BIGINT",
    "host": "VARCHAR",
    **dict.fromkeys(PHASES, "DOUBLE"),  # own time in a step, the mean: without what it stood still in collectives
    "waited": "DOUBLE",  # for other ranks
    "longer": "VARCHAR",  # the phase in which it exceeds the median of the others most
    "by": "DOUBLE",
}


def compare(facts: Sequence[Facts], num_steps: int) -> Comparison:
    """One row for each set of ranks that is worth a look, and for each rank (of many, those waited for most)."""
    found = study(facts, num_steps)
    who = named(found)
    rows = _costs(found, [one.cost for one in who]) if len(found.analysis.steps) else []
    verdict = judge(found, who)
    return Comparison(verdict, tuple(_COLUMNS), tuple(_COLUMNS.values()), rows, found.notes, found)


def _costs(found: Study, costs: Sequence[Cost]) -> list[list[object]]:
    """The rows, the biggest cost first: those that are named, and each rank."""
    several = [cost for cost in costs if len(cost.ranks) > 1]
    each = [found.cost_of([at]) for at in found.top_ranks]
    return [_row(found, cost) for cost in sorted([*several, *each], key=lambda cost: -cost.share)]


def _row(found: Study, cost: Cost) -> list[object]:
    at = list(cost.ranks)
    only = found.facts[at[0]].who if len(at) == 1 else None
    hosts = {found.facts[own].who.host for own in at}
    longer = found.longer(cost)
    analysis = found.analysis
    return [
        who_text(found, cost),
        ranks_text(found.numbers(cost), most=None),
        only.rank if only else None,
        only.pid if only else None,
        hosts.pop() if len(hosts) == 1 else None,
        cost.seconds_a_step,
        cost.share,
        cost.low,
        cost.high,
        cost.frequency,
        cost.since,
        longer.phase,
        found.slot(cost),
        float(np.median(analysis.own[at].mean(axis=0))),
        float(np.median(analysis.waited[at].mean(axis=0))),
    ]


def compare_phases(facts: Sequence[Facts], num_steps: int) -> Comparison:
    """One row a rank, and the phase that stands out most in it."""
    found = study(facts, num_steps)
    own = [{name: _mean(times) for name, times in found.own(at).items()} for at in range(len(found.facts))]
    by_phase = {name: np.array([phases[name] for phases in own], dtype=float) for name in PHASES}
    rows: list[list[object]] = []
    for at, fact in enumerate(found.facts if len(found.analysis.steps) else ()):
        extra: dict[str, float] = {}
        for name, times in by_phase.items():
            others = np.delete(times, at)
            if np.isfinite(times[at]) and np.isfinite(others).any():
                extra[name] = float(times[at] - np.nanmedian(others))
        most = max(extra, key=lambda name: extra[name], default=None)
        waited = float(found.analysis.waited[at].mean())
        rows.append([fact.who.rank, fact.who.host, *own[at].values(), waited, most, extra[most] if most else None])
    verdict = judge(found, named(found))
    return Comparison(verdict, tuple(_PHASE_COLUMNS), tuple(_PHASE_COLUMNS.values()), rows, found.notes, found)


def _mean(times: np.ndarray) -> float | None:
    known = times[np.isfinite(times)]
    return float(known.mean()) if len(known) else None
