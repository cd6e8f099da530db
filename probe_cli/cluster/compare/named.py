"""The costs worth a name: 5 % of the job's time or more with 95 % confidence, of ranks that really take longer.

And why nothing can be said: too few steps, calls or answers, or clocks that are not known well enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from probe_cli.cluster.delays.costs import Cost
from probe_cli.text import percent, ranks_text, seconds

from .evidence import Beside, Place
from .facts import Facts, Who, of_host, uncertainty_between
from .phases import Longer
from .starved import Starved, starved
from .study import MIN_STEPS, Study
from .suspended import with_late_data

__all__ = ["MIN_SHARE", "MOST", "STAGES", "Named", "each", "named", "too_little", "unclear_clocks", "who_text"]

#: The part of the job's time that is worth a name.
MIN_SHARE = 0.05
#: So many of the calls must be known of all their ranks.
MIN_COVERED = 0.5
#: And the calls of all ranks but for such a part.
MAX_SILENT = 0.25
#: By how many standard errors a rank must take longer than others; and each of a host, if all of it does.
MIN_SURE, ALSO_SURE = 3.5, 1.0
#: And longer than another one that is waited for at the same places.
SURE_OF_RIVAL = 2.0
#: How likely it may be by chance that the longest stretches of own time are a rank's.
MAX_CHANCE = 0.001
#: Of so many of several ranks it is looked at what each costs alone.
MAX_ALONE = 8
#: Of so many of several ranks it is tried what they cost without one of them: of those that are least suspect.
MAX_TRIED = 32
#: The part that each of several ranks must have in what they cost together.
MIN_PART = 0.15
#: A cost is there "in every step" when it is in so many.
MOST = 0.8
#: Roles that are called a stage.
STAGES = ("pp", "stage")


@dataclass(frozen=True)
class Named:
    """A cost that is worth a name, who has it, and with what."""

    cost: Cost
    who: str
    longer: Longer
    slot: str | None
    #: What was found out about it afterwards: a module, the job's line, what other tables tell.
    module: str | None = None
    line: Place | None = None
    beside: Beside | None = None
    starved: Starved | None = None

    @property
    def busy_host(self) -> str | None:
        """The host that lacks CPUs, if that is why these ranks are late."""
        return None if self.starved is None or not self.starved.is_sure else self.starved.busy_host

    @property
    def may_lack_cpus(self) -> bool:
        """Whether waiting for a CPU may be why they are late; more steps would tell."""
        return self.starved is not None and not self.starved.is_sure and self.starved.busy_host is not None


def named(study: Study, told: Mapping[Who, Facts] | None = None) -> list[Named]:
    """The costs that are worth a name, the biggest first; no rank is in two of them. `told` is what other tables say of
    these ranks and their peers: of several ranks, those that are late for want of a CPU are left out then."""
    told = told or {}
    if too_little(study):
        return []
    found: list[Cost] = []
    for candidate in study.analysis.candidates:
        if not _is_worth_a_name(study, candidate) or _is_a_sum(study, candidate):
            continue
        cost = _needed(study, candidate, told) if candidate.kind == "ranks" else candidate
        if cost is None or any(set(cost.ranks) & set(other.ranks) for other in found):
            continue
        if _stands_out(study, cost) and not unclear_clocks(study, each(cost)):
            found.append(study.with_kind(cost))
    found.sort(key=lambda cost: -cost.share)
    return [
        Named(
            with_late_data(study, told, cost),
            who_text(study, cost),
            study.longer(cost),
            study.slot(cost),
            starved=starved(study, cost.ranks, told),
        )
        for cost in found
    ]


def _is_worth_a_name(study: Study, cost: Cost) -> bool:
    """Whether it costs enough, with confidence. What is there now and then has a wide interval: then it is enough that
    nobody else costs nearly as much."""
    if cost.share < MIN_SHARE:
        return False
    others = [other.share for other in study.analysis.candidates if not set(other.ranks) & set(cost.ranks)]
    return cost.low >= MIN_SHARE or (cost.low >= MIN_SHARE / 2 and cost.low > max(others, default=0.0))


def _is_a_sum(study: Study, cost: Cost) -> bool:
    """Return whether ranks that only the analysis put together cost little more than each by itself, and one of them is
    worth a name alone: in a pipeline what innocent ranks cost adds up with it. Where all wait for each other, none
    of two slow ones costs much alone."""
    if cost.kind != "ranks":
        return False
    alone = [study.cost_of([rank]) for rank in cost.ranks[:MAX_ALONE]]
    return sum(one.share for one in alone) >= MOST * cost.share and any(_is_worth_a_name(study, one) for one in alone)


def _stands_out(study: Study, cost: Cost) -> bool:
    """Whether the ranks really take longer than others that do the same, and not by the chance of these steps.

    Ranks that share a host or a place in the job must do so together. Those that only the analysis put together were
    chosen by what they took: each of them must stand out by itself. On a busy host what a rank does now and then is
    lost in the mean of its steps; then the longest stretches must be its own. And each of several must take longer than
    another rank that is waited for as they are: each of three actors takes longer than the mean of the others, if
    one of these is a learner that is never late.
    """
    sure = study.sureness(cost)
    if cost.kind in ("rank", "ranks"):
        rival = study.rival(cost) if cost.kind == "ranks" else None
        if rival is not None and min(study.sureness_over(rival, cost)) < SURE_OF_RIVAL:
            return False
        peers = study.peers(cost)
        return all(
            one >= MIN_SURE or study.chance_of_longest(at, peers) <= MAX_CHANCE
            for at, one in zip(cost.ranks, sure, strict=True)
        )
    return study.sureness_together(cost) >= MIN_SURE and sum(one >= ALSO_SURE for one in sure) >= MOST * len(sure)


def _needed(study: Study, cost: Cost, told: Mapping[Who, Facts]) -> Cost | None:
    """Those of the ranks without which the others would cost less together; None where no few ranks stand out.

    Ranks that only the analysis put together are named together when each of them has its part in the cost.
    """
    lacking = [rank for rank in cost.ranks if (one := starved(study, [rank], told)) and one.is_sure and one.busy_host]
    if 0 < len(lacking) < len(cost.ranks):
        cost = study.cost_of([rank for rank in cost.ranks if rank not in lacking])
    cost = _without_many(study, cost)
    while 1 < len(cost.ranks) <= len(study.facts) / 2:
        tried = cost.ranks if len(cost.ranks) <= MAX_TRIED else study.by_suspicion(cost.ranks)[:MAX_TRIED]
        without = [study.cost_of([rank for rank in cost.ranks if rank != out]) for out in tried]
        least = max(without, key=lambda rest: rest.share)
        if _needs(cost, least):
            return cost
        cost = least
    return cost if len(cost.ranks) == 1 and _is_worth_a_name(study, cost) else None


def _without_many(study: Study, cost: Cost) -> Cost:
    """Of more ranks than can be tried one by one, leave out as many at once as have no part in the cost together."""
    num = len(cost.ranks)
    while num and MAX_TRIED < len(cost.ranks) <= len(study.facts) / 2:
        num = min(num, len(cost.ranks)) // 2
        rest = study.cost_of(sorted(study.by_suspicion(cost.ranks)[num:]))
        cost = cost if _needs(cost, rest) else rest
    return cost


def _needs(cost: Cost, rest: Cost) -> bool:
    """Return whether the ranks of a cost that are not in `rest` have a part in it."""
    return cost.share - rest.share >= max(MIN_SHARE / 2, MIN_PART * cost.share)


def who_text(study: Study, cost: Cost) -> str:
    """`rank 3 (on node2)`, `host node2 (ranks 8-15)`, `stage 3 (ranks 12-15)`."""
    ranks = study.numbers(cost)
    if len(ranks) == 1:
        who = study.facts[cost.ranks[0]].who
        return f"{who}{of_host(who, study.facts)}"
    listed = f"ranks {ranks_text(ranks)}"
    if cost.kind == "host":
        return f"host {study.facts[cost.ranks[0]].who.host} ({listed})"
    if cost.kind == "work":
        return f"those that make the same calls ({listed})"
    if cost.kind in ("rank", "ranks"):
        return listed
    value = study.facts[cost.ranks[0]].roles.get(cost.kind)
    return f"stage {value} ({listed})" if cost.kind in STAGES else f"all ranks with {cost.kind} {value} ({listed})"


def each(cost: Cost) -> float:
    """What it costs in a step in which it costs something."""
    return cost.seconds_a_step / cost.frequency if cost.frequency else cost.seconds_a_step


def unclear_clocks(study: Study, cost_s: float) -> str:
    """That the hosts' clocks are too far apart to tell who waited for a cost of `cost_s`; empty where they do."""
    unsure = uncertainty_between(study.facts)
    if unsure is not None and unsure <= cost_s:
        return ""
    apart = "an unknown time" if unsure is None else seconds(unsure)
    return f"the hosts' clocks may be {apart} apart, so who waited for whom is not known"


def too_little(study: Study) -> str:
    """Why nothing can be said; empty where something can."""
    facts, analysis = study.told, study.analysis
    if len(facts) < 2:
        return f"it takes two ranks to compare, and {len(facts)} answered"
    if not any(fact.steps for fact in facts):
        return "no rank has recorded a step yet"
    num_calls = sum(bool(fact.calls) for fact in facts)
    if num_calls < 2:
        return (
            f"{num_calls} of {len(facts)} ranks told of a collective, send or receive, so it is not known who waits for"
            " whom (those that C++ calls are known where TORCH_FR_BUFFER_SIZE is not 0)"
        )
    if len(study.facts) < 2:
        return f"it takes two ranks to compare, and the collectives of {len(facts) - len(study.facts)} are not known"
    if len(analysis.steps) < MIN_STEPS:
        return f"the ranks have {len(analysis.steps)} steps in common, {MIN_STEPS} are needed"
    if study.num_silent > MAX_SILENT * (study.num_silent + len(study.facts)):
        return f"the collectives of {study.num_silent} ranks in these steps are not known"
    if analysis.covered < MIN_COVERED:
        return f"{percent(analysis.covered)} of the calls in these steps are known of all their ranks"
    return ""
