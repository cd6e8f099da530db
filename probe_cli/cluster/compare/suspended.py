"""Ranks whose whole process stands still now and then, while they wait for data anyway.

A process that is stopped (a signal, a debugger, a frozen or throttled cgroup) takes data late that were sent long ago.
That is no work of its own, so it counts as data on their way, and no rank seems to be late. The recorder's thread in
the target stands still, too: it samples the process once a second (`period` in `process.samples`), and then later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from probe_cli.cluster.delays.costs import Cost, cost
from probe_cli.cluster.delays.rows import Who

from .evidence import part_suspended, sample_period
from .facts import Facts
from .study import Study

__all__ = ["Suspended", "data_late_at", "suspended", "with_late_data"]


#: The part of the time from which a rank that is late anyway counts as one that was stopped. Samples come once a second
#: and are late by half a stop on average: of stops of 0.3 s in every 2 s they show 4 %.
SHOWS = 0.02


@dataclass(frozen=True)
class Suspended:
    """A rank that stood still: for which part of the time at least, and what that costs at most."""

    cost: Cost
    part: float


def suspended(study: Study, told: Mapping[Who, Facts], min_share: float) -> Suspended | None:
    """The rank that stood still most, if that and the data that it took late are worth `min_share` of the time. It
    costs what it took too long for its own work, too: it is stopped in that as well."""
    found = [
        Suspended(_both(study, study.cost_of([at]), late), part)
        for at, part in _stood_still(study, told)
        if part >= min_share and (late := data_late_at(study, at)).low >= min_share
    ]
    return max(found, key=lambda one: one.cost.share, default=None)


def with_late_data(study: Study, told: Mapping[Who, Facts], one: Cost) -> Cost:
    """Return the cost of a rank that takes longer for its own work, with that of the data that it took late where its
    process stood still now and then."""
    if len(one.ranks) != 1 or dict(_stood_still(study, told)).get(one.ranks[0], 0.0) < SHOWS:
        return one
    late = data_late_at(study, one.ranks[0])
    return replace(_both(study, one, late), kinds=one.kinds) if late.low > 0 else one


def _both(study: Study, own: Cost, late: Cost) -> Cost:
    analysis = study.analysis
    return cost(own.ranks, own.per_step + late.per_step, analysis.lengths, analysis.steps, ["rank"])


def _stood_still(study: Study, told: Mapping[Who, Facts]) -> Iterator[tuple[int, float]]:
    """Yield the part of the time for which each rank stood still at least, by the samples of all."""
    periods = {
        at: period
        for at, fact in enumerate(study.facts)
        if (mine := told.get(fact.who)) and (period := sample_period(mine, *study.span(fact.who))) is not None
    }
    for at, period in periods.items():
        usual = median([of for other, of in periods.items() if other != at] or [period])
        yield at, part_suspended(period, usual)


def data_late_at(study: Study, at: int) -> Cost:
    """Return how much longer than its peers this rank stood still for data that had been sent already."""
    analysis = study.analysis
    per_step = analysis.transfer[at] - np.median(analysis.transfer[study.peers_of([at])], axis=0)
    return cost([at], per_step, analysis.lengths, analysis.steps, ["rank"])
