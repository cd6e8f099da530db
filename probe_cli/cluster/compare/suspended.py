"""Ranks whose whole process stands still now and then, while they wait for data anyway.

A process that is stopped (a signal, a debugger, a frozen or throttled cgroup) takes data late that were sent long ago.
That is no work of its own, so it counts as data on their way, and no rank seems to be late. The recorder's thread in
the target stands still, too: it samples the process once a second (`period` in `process.samples`), and then later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from probe_cli.cluster.delays.costs import Cost, cost
from probe_cli.cluster.delays.rows import Who

from .evidence import part_suspended, sample_period
from .facts import Facts
from .study import Study

__all__ = ["Suspended", "data_late_at", "suspended"]


@dataclass(frozen=True)
class Suspended:
    """A rank that stood still: for which part of the time at least, and what it took data late costs at most."""

    cost: Cost
    part: float


def suspended(study: Study, told: Mapping[Who, Facts], min_share: float) -> Suspended | None:
    """The rank that stood still most, if that and the data that it took late are worth `min_share` of the time."""
    periods = {
        at: period
        for at, fact in enumerate(study.facts)
        if (mine := told.get(fact.who)) and (period := sample_period(mine, *study.span(fact.who))) is not None
    }
    found = []
    for at, period in periods.items():
        usual = median([of for other, of in periods.items() if other != at] or [period])
        part = part_suspended(period, usual)
        if part >= min_share and (late := data_late_at(study, at)).low >= min_share:
            found.append(Suspended(late, part))
    return max(found, key=lambda one: one.cost.share, default=None)


def data_late_at(study: Study, at: int) -> Cost:
    """Return how much longer than its peers this rank stood still for data that had been sent already."""
    analysis = study.analysis
    per_step = analysis.transfer[at] - np.median(analysis.transfer[study.peers_of([at])], axis=0)
    return cost([at], per_step, analysis.lengths, analysis.steps, ["rank"])
