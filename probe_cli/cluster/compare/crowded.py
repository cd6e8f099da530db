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

#: The threads of such a rank wait so many times as long as they would anyway, in nearly each second that was sampled.
TIMES, IN_MOST = 3.0, 0.75
#: Samples that tell whether it is always so.
ENOUGH = 3


@dataclass(frozen=True)
class _Delays:
    """Parts of the time of one rank: that all its threads together waited for a CPU, that they did in most seconds at
    least, that they had a CPU, and that its training thread had one or waited for it."""

    all: float
    mostly: float
    cpu: float
    training: float


@dataclass(frozen=True)
class Crowded:
    """Ranks whose CPUs other work uses; `delay` and `cpu` are parts of the time that all their threads together wait
    for a CPU and have one, `usual` is the median delay of the peers that have CPUs of their own, too."""

    ranks: tuple[int, ...]  # indices
    cpus: str
    delay: float
    cpu: float
    usual: float | None
    #: Part of the time that it may cost the job: no more than for what the other ranks do nothing, nor wait for a rank.
    share: float


def crowded(study: Study, told: Mapping[Who, Facts], min_share: float) -> Crowded | None:
    """The ranks with CPUs of their own whose threads wait for them, while those of the others do not; None where that
    costs less than `min_share`."""
    known: dict[int, _Delays] = {}
    facts: dict[int, Facts] = {}
    for at, fact in enumerate(study.facts):
        if (mine := told.get(fact.who)) is not None and (delays := _delays(mine, study)) is not None:
            known[at], facts[at] = delays, mine
    alone = [at for at in known if _has_own_cpus(facts[at], [facts[other] for other in known if other != at])]
    excess = {at: known[at].all - _anyway(at, alone, known) for at in alone}
    late = [at for at in alone if excess[at] >= min_share and _is_mostly_late(at, alone, known)]
    others = [at for at in known if at not in late]
    if not late or len(late) > len(others):
        return None
    waited = study.analysis.waited.sum(axis=1) / study.analysis.time_s
    idle = median(1.0 - known[at].training - float(waited[at]) for at in others)
    share = min(mean(excess[at] for at in late), idle)
    if share < min_share:
        return None
    peers = [known[at].all for at in alone if at not in late]
    return Crowded(
        tuple(late),
        str(facts[late[0]].samples["cpus"][-1]),
        mean(known[at].all for at in late),
        mean(known[at].cpu for at in late),
        median(peers) if peers else None,
        share,
    )


def _anyway(at: int, alone: Sequence[int], known: Mapping[int, _Delays]) -> float:
    """Return the part of the time that its threads would wait without other work: that of peers with CPUs of their
    own. Peers that share CPUs wait for each other and tell nothing; but on CPUs of its own a rank's threads wait for
    each other only, hardly longer than they work."""
    peers = [known[other].all for other in alone if other != at]
    return median(peers) if peers else known[at].cpu


def _is_mostly_late(at: int, alone: Sequence[int], known: Mapping[int, _Delays]) -> bool:
    return known[at].mostly >= TIMES * max(_anyway(at, alone, known), 1e-3)


def _delays(fact: Facts, study: Study) -> _Delays | None:
    since, until = study.span(fact.who)
    own, others = rates(fact, "run_delay", since, until), rates(fact, "run_delay_others", since, until)
    cpu, training = rate(fact, "cpu", since, until), rate(fact, "cpu_training", since, until)
    if cpu is None or training is None or len(own) < ENOUGH or len(own) != len(others):
        return None
    both = own + others
    return _Delays(float(both.mean()), float(np.quantile(both, 1 - IN_MOST)), cpu, training + float(own.mean()))


def _has_own_cpus(mine: Facts, others: Sequence[Facts]) -> bool:
    """Return whether no other rank of its host may use its CPUs."""
    own = _cpus(mine)
    return bool(own) and not any(own & _cpus(other) for other in others if other.who.host == mine.who.host)


def _cpus(fact: Facts) -> set[int]:
    return set(ranks_in(str(fact.samples["cpus"][-1])))
