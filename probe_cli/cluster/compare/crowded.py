"""Ranks whose own CPUs other work uses, so that all ranks get their data late.

The threads that send and receive (gloo's, NCCL's proxies) then wait for a CPU while every rank has come to the
collective already. No rank's own work takes longer, so no rank is late, and the data on their way take longer for all.
The kernel counts for how long these threads were ready to run but had no CPU (`run_delay_others` in `process.samples`).
Only ranks that have CPUs of their own can be told from a host that is busy for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np

from probe_cli.cluster.delays.rows import Who
from probe_cli.text import ranks_in

from .evidence import rate, rates
from .facts import Facts
from .study import Study

__all__ = ["Crowded", "crowded"]

#: The threads of such a rank wait so many times as long as those of its peers, in nearly each second that was sampled.
TIMES, IN_MOST = 3.0, 0.75
#: Samples that tell whether it is always so.
ENOUGH = 3


@dataclass(frozen=True)
class Crowded:
    """Ranks whose CPUs other work uses; `delay` and `usual` are parts of the time that all their threads together wait
    for a CPU, and the median of the others."""

    ranks: tuple[int, ...]  # indices
    cpus: str
    delay: float
    usual: float
    #: Part of the time that it may cost the job: no more than for what the other ranks do nothing, nor wait for a rank.
    share: float


def crowded(study: Study, told: Mapping[Who, Facts], min_share: float) -> Crowded | None:
    """The ranks whose threads wait for a CPU while those of the others do not; None where that costs less than
    `min_share`."""
    known: dict[int, tuple[float, float, float]] = {}
    for at, fact in enumerate(study.facts):
        if (mine := told.get(fact.who)) is not None and (delays := _delays(mine, study)) is not None:
            known[at] = delays
    if len(known) < 2:
        return None
    usual = median(delay for delay, _, _ in known.values())
    least = TIMES * max(usual, 1e-3)
    late = [at for at, (delay, mostly, _) in known.items() if delay - usual >= min_share and mostly >= least]
    others = [at for at in known if at not in late]
    if not late or len(late) > len(others):
        return None
    usual = median(known[at][0] for at in others)
    facts = {at: told[study.facts[at].who] for at in known}
    if not all(_has_own_cpus(facts[at], [facts[other] for other in others]) for at in late):
        return None
    delay = mean(known[at][0] for at in late)
    waited = study.analysis.waited.sum(axis=1) / study.analysis.time_s
    idle = median(1.0 - known[at][2] - float(waited[at]) for at in others)
    share = min(delay - usual, idle)
    if share < min_share:
        return None
    return Crowded(tuple(late), str(facts[late[0]].samples["cpus"][-1]), delay, usual, share)


def _delays(fact: Facts, study: Study) -> tuple[float, float, float] | None:
    """Parts of the time: that its threads waited for a CPU, that they did in most seconds at least, and that its
    training thread had a CPU or waited for one."""
    since, until = study.span(fact.who)
    own, others = rates(fact, "run_delay", since, until), rates(fact, "run_delay_others", since, until)
    cpu = rate(fact, "cpu_training", since, until)
    if cpu is None or len(own) < ENOUGH or len(own) != len(others):
        return None
    both = own + others
    return float(both.mean()), float(np.quantile(both, 1 - IN_MOST)), cpu + float(own.mean())


def _has_own_cpus(mine: Facts, others: Sequence[Facts]) -> bool:
    """Return whether no other rank of its host may use its CPUs."""
    own = _cpus(mine)
    return bool(own) and not any(own & _cpus(other) for other in others if other.who.host == mine.who.host)


def _cpus(fact: Facts) -> set[int]:
    return set(ranks_in(str(fact.samples["cpus"][-1])))
