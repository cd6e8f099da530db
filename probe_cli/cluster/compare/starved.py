"""Whether a rank takes longer because it waits for a CPU, and whether its peers compete for the same CPUs.

The kernel counts how long a thread was ready to run but had no CPU (run delay, in `process.samples`). On a busy host
the ranks share that unevenly: for some seconds one of them waits much longer than the others. It really is late then,
but what is slow is the host, and the next rank may be late in a minute. A rank with CPUs or a priority of its own is
slow for a reason of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from probe_cli.cluster.delays.rows import Who

from .evidence import rate
from .facts import Facts
from .study import Study

__all__ = ["EXPLAINS", "Starved", "starved", "usual_delay"]

#: Waiting for a CPU is why a cost rotates if it is at least this part of it; and a rank is
#: starved if at least this part of what it takes longer than its peers is time for which it had no CPU.
EXPLAINS = 0.5
#: The kernel's counts are read once a second: over fewer seconds they do not tell when a rank had no CPU.
SHORT_S = 5.0


@dataclass(frozen=True)
class Starved:
    """Ranks that take longer because they wait for a CPU."""

    #: Parts of the time: of these ranks, and the median of their peers.
    delay: float
    usual: float
    #: The host on which each of them shares its CPUs with a peer, at the same priority; None if one does not.
    busy_host: str | None
    #: Whether these numbers show it; if not, it may be so, and the steps took too short a time to tell.
    is_sure: bool = True


def starved(study: Study, ranks: Sequence[int], told: Mapping[Who, Facts]) -> Starved | None:
    """Return how long these ranks (indices) wait for a CPU; None if that is not why they take longer, or not known."""
    if not told:
        return None
    since, until = study.span(study.facts[ranks[0]].who)
    mine, peers = (
        [
            (at, *rates)
            for at in some
            if (fact := told.get(study.facts[at].who)) is not None and (rates := _rates(fact, since, until)) is not None
        ]
        for some in (ranks, study.peers_of(ranks))
    )
    if not mine or not peers:
        return None
    own = study.analysis.own.sum(axis=1) / study.analysis.time_s
    longer = mean(own[at] for at, _, _ in mine) - median(own[at] for at, _, _ in peers)
    delay, cpu = (mean(each) for each in list(zip(*mine, strict=True))[1:])
    usual, usual_cpu = (median(each) for each in list(zip(*peers, strict=True))[1:])
    # Who computes more than the others waits more for a CPU: that part is of its own making.
    alike = delay * min(1.0, usual_cpu / cpu) if cpu > 0 else delay
    if longer <= 0 or delay <= usual:
        return None
    is_sure = alike - usual >= EXPLAINS * longer
    if not is_sure and (until - since >= SHORT_S or alike < EXPLAINS * longer):
        return None
    peers_told = [told[study.facts[at].who] for at, _, _ in peers]
    hosts = {_shared_host(told[study.facts[at].who], peers_told) for at, _, _ in mine}
    return Starved(delay, usual, hosts.pop() if len(hosts) == 1 else None, is_sure)


def usual_delay(study: Study, told: Mapping[Who, Facts]) -> float | None:
    """Return the median part of the time for which these ranks waited for a CPU; None if that is not known."""
    delays = [
        delay
        for who, fact in told.items()
        if who in study.analysis.who and (delay := rate(fact, "run_delay", *study.span(who))) is not None
    ]
    return median(delays) if delays else None


def _rates(fact: Facts, since: float, until: float) -> tuple[float, float] | None:
    """Parts of the time for which its training thread waited for a CPU, and had one."""
    delay, cpu = rate(fact, "run_delay", since, until), rate(fact, "cpu_training", since, until)
    return None if delay is None or cpu is None else (delay, cpu)


def _shared_host(mine: Facts, peers: Sequence[Facts]) -> str | None:
    """Return its host if a peer there may use the same CPUs at the same priority."""
    beside = [peer for peer in peers if peer.who.host == mine.who.host and _allowed(peer) == _allowed(mine)]
    return mine.who.host if beside else None


def _allowed(fact: Facts) -> tuple[object, object]:
    """Return the CPUs that its training thread may use, and its niceness."""
    return fact.samples["cpus"][-1], fact.samples["nice"][-1]
