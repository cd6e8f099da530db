"""From what ranks cost the job to one verdict: who is named, that the cost rotates, that there is none, or that it
cannot be told.

A name takes a cost of 5 % of the job's time or more with 95 % confidence. So does the all-clear: it is given only where
such a cost would have been seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe_cli.cluster.delays.costs import Cost
from probe_cli.text import percent, ranks_text, seconds, sum_up

from .comparison import Verdict
from .crowded import Crowded, crowded
from .evidence import Beside, Place, line_text
from .facts import Facts, Who, of_host, uncertainty_between
from .phases import Longer
from .starved import EXPLAINS, Starved, starved, usual_delay
from .study import MIN_STEPS, Study
from .suspended import Suspended, data_late_at, suspended

__all__ = ["Named", "judge", "named"]

#: The part of the job's time that is worth a name.
MIN_SHARE = 0.05
#: A job that would not have shown this cost gets no all-clear.
MAX_VISIBLE = 0.10
#: So many of the calls must be known of all their ranks.
MIN_COVERED = 0.5
#: By how many standard errors a rank must take longer than others; and each of a host, if all of it does.
MIN_SURE, ALSO_SURE = 3.5, 1.0
#: How likely it may be by chance that the longest stretches of own time are a rank's.
MAX_CHANCE = 0.001
#: A rank that may cost so much is no reason to say that the cost rotates; if all together may, there is no all-clear.
UNSURE = 0.10
#: And the calls of all ranks but for such a part.
MAX_SILENT = 0.25
#: Of so many of several ranks it is looked at what each costs alone.
MAX_ALONE = 8
#: The part that each of several ranks must have in what they cost together.
MIN_PART = 0.15
#: What is there in fewer of the steps is told with that.
FEW = 0.2
#: Ranks that wait for a CPU for such a part of the time are on a busy host.
MIN_DELAY = 0.05
#: And a network that data take such a part of the time on is worth a word.
MUCH = 0.2
#: A cost is there "in every step" when it is in so many.
MOST = 0.8

#: Roles that are called a stage.
STAGES = ("pp", "stage")

_PHASES = {
    "data_wait": "data loading",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "evaluation": "evaluation",
    "generation": "generation",
    "other": "work outside data loading, forward, backward and optimizer (a checkpoint, logging, …)",
    "forward or other": "work outside data loading, backward and optimizer",
    "all phases": "own work in all phases",
}


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
    if _too_little(study):
        return []
    found: list[Cost] = []
    for candidate in study.analysis.candidates:
        if not _is_worth_a_name(study, candidate) or _is_a_sum(study, candidate):
            continue
        cost = _needed(study, candidate, told) if candidate.kind == "ranks" else candidate
        if cost is None or any(set(cost.ranks) & set(other.ranks) for other in found):
            continue
        if _stands_out(study, cost) and not _clocks(study, each(cost)):
            found.append(study.with_kind(cost))
    found.sort(key=lambda cost: -cost.share)
    return [
        Named(cost, who_text(study, cost), study.longer(cost), study.slot(cost), starved=starved(study, cost, told))
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
    """Whether ranks that only the analysis put together cost little more together than each by itself, and one of them
    is worth a name alone: in a pipeline what innocent ranks cost adds up with it. Where all wait for each other, none
    of two slow ones costs much alone."""
    if cost.kind != "ranks":
        return False
    alone = [study.cost_of([rank]) for rank in cost.ranks[:MAX_ALONE]]
    return sum(one.share for one in alone) >= MOST * cost.share and any(_is_worth_a_name(study, one) for one in alone)


def _stands_out(study: Study, cost: Cost) -> bool:
    """Whether the ranks really take longer than others that do the same, and not by the chance of these steps.

    Ranks that share a host or a place in the job must do so together. Those that only the analysis put together were
    chosen by what they took: each of them must stand out by itself. On a busy host what a rank does now and then is
    lost in the mean of its steps; then the longest stretches must be its own.
    """
    sure = study.sureness(cost)
    if cost.kind in ("rank", "ranks"):
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
    lacking = [
        rank
        for rank in cost.ranks
        if (one := starved(study, study.cost_of([rank]), told)) and one.is_sure and one.busy_host
    ]
    if 0 < len(lacking) < len(cost.ranks):
        cost = study.cost_of([rank for rank in cost.ranks if rank not in lacking])
    while 1 < len(cost.ranks) <= len(study.facts) / 2:
        without = [study.cost_of([rank for rank in cost.ranks if rank != out]) for out in cost.ranks]
        least = max(without, key=lambda rest: rest.share)
        if cost.share - least.share >= max(MIN_SHARE / 2, MIN_PART * cost.share):
            return cost
        cost = least
    return cost if len(cost.ranks) == 1 and _is_worth_a_name(study, cost) else None


def judge(study: Study, found: Sequence[Named], told: Mapping[Who, Facts] | None = None) -> Verdict:
    """The verdict where the job runs; `found` is what `named` found, `told` what other tables say of some ranks."""
    analysis = study.analysis
    num_steps = len(analysis.steps)
    if why := _too_little(study):
        return Verdict("not enough data", f"not enough data: {why}", num_steps=num_steps)
    total = analysis.total()
    about: dict[str, Any] = {
        "num_steps": num_steps,
        "step": analysis.step_s,
        "total_share": total.share,
        "smallest_visible": analysis.smallest_visible,
        "evidence": "waits",
    }
    over = f"{len(study.facts)} ranks compared over {num_steps} steps of {seconds(analysis.step_s)}"
    data = _data_text(study)
    if blamed := [one for one in found if one.busy_host is None and not one.may_lack_cpus]:
        return _named_verdict(study, blamed, about)
    if unclear_ones := [one for one in found if one.may_lack_cpus]:
        return _unclear_verdict(unclear_ones[0], over, about)
    if crowd := crowded(study, told or {}, MIN_SHARE):
        return _crowded_verdict(study, crowd, over, about)
    if stopped := suspended(study, told or {}, MIN_SHARE):
        return _suspended_verdict(study, stopped, over, about)
    if found:
        return _busy_verdict(found[0], over, about)
    if apart := study.apart():
        alone = study.analysis.cost_at_once(apart)
        if alone.share >= UNSURE and alone.low >= MIN_SHARE and not _clocks(study, each(alone)):
            return _alone_verdict(study, alone, over, about)
    most = study.most_costly
    if unclear := _clocks(study, MIN_SHARE * analysis.step_s):
        return Verdict("not enough data", f"not enough data: {unclear}: {over}", **about)
    if most.share >= UNSURE:
        who = study.facts[most.ranks[0]].who
        late = Named(most, str(who), Longer(None), None, starved=starved(study, most, told or {}))
        if late.busy_host is not None:
            return _busy_verdict(late, over, about)
        text = (
            f"not enough data: {who} may cost {_share(most)} of the job's time, in {percent(most.frequency)} of the"
            f" steps, but that may be chance; compare more steps with --steps: {over}"
        )
        return Verdict("not enough data", text, **about)
    if total.low >= MIN_SHARE:
        phase = study.rotating_phase()
        delay = usual_delay(study, told or {}) or 0.0
        if delay >= EXPLAINS * total.share:
            return _busy_for_all_verdict(study, total, delay, over, about)
        waits = f"; ranks wait for a CPU {percent(delay)} of the time" if delay >= MIN_DELAY else ""
        text = (
            "no rank holds the job up for long: ranks wait now for one and now for another, which costs"
            f" {_share(total)} of the job's time{f', most of it in {_PHASES[phase]}' if phase else ''}; no rank costs"
            f" more than {percent(most.share)}{_rarely(most)}{waits}{data}: {over}"
        )
        return Verdict("rotates", text, where=phase, **_shares(total), **about)
    if analysis.smallest_visible > MAX_VISIBLE:
        text = (
            f"not enough data: only what costs {percent(analysis.smallest_visible)} of the job's time or more would"
            f" have been seen: {over}"
        )
        return Verdict("not enough data", text, **about)
    if total.high >= UNSURE:
        text = (
            f"not enough data: all differences between the ranks cost {_share(total)} of the job's time together, and"
            f" these steps do not tell whether it is one rank; compare more steps with --steps: {over}"
        )
        return Verdict("not enough data", text, **_shares(total), **about)
    text = (
        f"no rank holds the job up: {over}; all differences between them cost {_share(total)} of its time together,"
        f" and what costs {percent(max(MIN_SHARE, analysis.smallest_visible))} or more would have been seen{data}"
    )
    return Verdict("nobody", text, **_shares(total), **about)


def _data_text(study: Study) -> str:
    """How long ranks stand still for data on their way, where that is much, or more at one of them."""
    times = study.analysis.transfer.sum(axis=1) / study.analysis.time_s
    if (mean := float(times.mean())) >= MUCH:
        return f"; ranks stand still for data on their way {percent(mean)} of the time"
    most = int(times.argmax())
    if data_late_at(study, most).low < MIN_SHARE:
        return ""
    usual = float(np.median(np.delete(times, most)))
    return (
        f"; {study.facts[most].who} stands still for data that had been sent {percent(float(times[most]))} of the time,"
        f" the others {percent(usual)}"
    )


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


def cost_text(cost: Cost, late: float = 0.0) -> str:
    """`52 % of its time (48 to 56 %), 310 ms in every 10th step, since step 1200`. A rank that is `late` in nearly all
    steps costs something in each, though others that are late by chance may hide it in many."""
    if cost.frequency >= MOST or (late >= MOST and cost.period is None):
        often = f"{seconds(cost.seconds_a_step)} a step"
    elif cost.period is not None:
        often = f"in every {_ordinal(cost.period)} step, {seconds(each(cost))} each"
    else:
        often = f"in {percent(cost.frequency)} of the steps, {seconds(each(cost))} each"
    since = "" if cost.since is None else f", since step {cost.since}"
    return f"{_share(cost)} of its time, {often}{since}"


def each(cost: Cost) -> float:
    """What it costs in a step in which it costs something."""
    return cost.seconds_a_step / cost.frequency if cost.frequency else cost.seconds_a_step


def _named_verdict(study: Study, found: Sequence[Named], about: dict[str, Any]) -> Verdict:
    first = found[0]
    sentences = [_sentence(one, first is one) for one in found]
    cost = first.cost
    return Verdict(
        "stands out",
        sum_up(sentences),
        ranks=tuple(dict.fromkeys(rank for one in found for rank in study.numbers(one.cost))),
        kind="stage" if cost.kind in STAGES else cost.kind,
        where=first.longer.phase,
        slot=first.slot,
        module=first.module,
        line=None if first.line is None else " at ".join(first.line),
        beside={} if first.beside is None else first.beside.fields,
        value=first.longer.value,
        median=first.longer.usual,
        cost=cost.seconds_a_step,
        cost_each=each(cost),
        **_shares(cost),
        frequency=cost.frequency,
        period=cost.period,
        since=cost.since,
        **about,
    )


def _crowded_verdict(study: Study, crowd: Crowded, over: str, about: dict[str, Any]) -> Verdict:
    """The verdict where other work uses the CPUs of some ranks, whose threads send and receive late then."""
    who = who_text(study, study.with_kind(study.cost_of(crowd.ranks)))
    verb, its = ("hold", "their") if len(crowd.ranks) > 1 else ("holds", "its")
    against = f"and have one {percent(crowd.cpu)}"
    if crowd.usual is not None:
        against = f"those of {its} peers {percent(crowd.usual)}"
    text = (
        f"{who} {verb} the job up, by up to {percent(crowd.share)} of its time: other work uses {its} CPUs"
        f" ({crowd.cpus}); all {its} threads together wait for a CPU {percent(crowd.delay)} of the time, {against},"
        f" so that data are late on all ranks: {over}"
    )
    return Verdict(
        "stands out",
        text,
        ranks=tuple(study.facts[at].who.rank for at in crowd.ranks),
        kind="rank" if len(crowd.ranks) == 1 else "ranks",
        beside={"run_delay_all": (crowd.delay, crowd.usual)},
        cost=crowd.share * study.analysis.step_s,
        share=crowd.share,
        **{**about, "evidence": "run delay"},
    )


def _suspended_verdict(study: Study, stopped: Suspended, over: str, about: dict[str, Any]) -> Verdict:
    """The verdict where the whole process of a rank stands still, and takes data late that were sent long before."""
    cost = stopped.cost
    text = (
        f"{who_text(study, cost)} holds the job up, by up to {cost_text(cost)}: its process stands still,"
        f" {percent(stopped.part)} of the time or more (stopped by a signal, a debugger or its cgroup, or something"
        f" keeps its GIL), and takes data late that had been sent: {over}"
    )
    return Verdict(
        "stands out",
        text,
        ranks=tuple(study.numbers(cost)),
        kind="rank",
        beside={"suspended": (stopped.part, 0.0)},
        cost=cost.seconds_a_step,
        cost_each=each(cost),
        **_shares(cost),
        frequency=cost.frequency,
        period=cost.period,
        since=cost.since,
        **{**about, "evidence": "sample period"},
    )


def _alone_verdict(study: Study, cost: Cost, over: str, about: dict[str, Any]) -> Verdict:
    """The verdict where all ranks wait for work that only some have, so that nobody says how long it ought to take."""
    who, slot = who_text(study, cost), study.slot(cost, 1)
    verb, does = ("hold", "do") if len(cost.ranks) > 1 else ("holds", "does")
    text = (
        f"{who} {verb} the job up, by up to {cost_text(cost)}: all others wait for work that only {who} {does}"
        f"{f', {slot}' if slot else ''}: {over}"
    )
    return Verdict(
        "stands out",
        text,
        ranks=tuple(study.numbers(cost)),
        kind=cost.kind,
        slot=slot,
        cost=cost.seconds_a_step,
        cost_each=each(cost),
        **_shares(cost),
        frequency=cost.frequency,
        period=cost.period,
        since=cost.since,
        **about,
    )


def _unclear_verdict(one: Named, over: str, about: dict[str, Any]) -> Verdict:
    """The verdict where ranks are late, and waiting for a CPU may be why: the steps took too short a time to tell."""
    assert one.starved is not None
    delay, usual = percent(one.starved.delay), percent(one.starved.usual)
    text = (
        f"not enough data: {one.who} costs {_share(one.cost)} of the job's time, but waits for a CPU {delay} of the"
        f" time, peers with the same CPUs {usual}, and so short a time does not tell a busy host from a slow rank;"
        f" compare more steps with --steps: {over}"
    )
    return Verdict("not enough data", text, **_shares(one.cost), **about)


def _busy_verdict(one: Named, over: str, about: dict[str, Any]) -> Verdict:
    """The verdict where ranks are late because their host lacks CPUs."""
    assert one.starved is not None
    waits = "wait" if len(one.cost.ranks) > 1 else "waits"
    delay, usual = percent(one.starved.delay), percent(one.starved.usual)
    text = (
        f"host {one.busy_host} is busy: {one.who} {waits} for a CPU {delay} of the time, peers with the same CPUs"
        f" {usual}, which costs the job {_share(one.cost)} of its time; no rank holds it up by its own work: {over}"
    )
    return Verdict(
        "busy host",
        text,
        kind="host",
        where=one.busy_host,
        beside={} if one.beside is None else one.beside.fields,
        cost=one.cost.seconds_a_step,
        cost_each=each(one.cost),
        **_shares(one.cost),
        frequency=one.cost.frequency,
        **about,
    )


def _busy_for_all_verdict(study: Study, total: Cost, delay: float, over: str, about: dict[str, Any]) -> Verdict:
    """The verdict where ranks come late by turns, and waiting for a CPU is at least half of what that costs."""
    hosts = {fact.who.host for fact in study.facts}
    who = f"host {min(hosts)} is" if len(hosts) == 1 else f"the {len(hosts)} hosts are"
    text = (
        f"{who} busy: ranks wait for a CPU {percent(delay)} of the time, and so by turns for each other, which costs"
        f" the job {_share(total)} of its time; no rank costs more than {percent(study.most_costly.share)}: {over}"
    )
    where = min(hosts) if len(hosts) == 1 else None
    return Verdict("busy host", text, kind="host", where=where, **_shares(total), **about)


def _sentence(one: Named, is_first: bool) -> str:
    verb = "hold" if one.who.startswith(("ranks", "those", "all")) else "holds"
    head = f"{one.who} {verb} the job up: " if is_first else f"{one.who}: "
    line = f", {line_text(one.line)}" if one.line else ""
    tables = "".join(f"; {text}" for text in one.beside.sentences) if one.beside else ""
    return head + cost_text(one.cost, one.longer.often) + where_text(one) + line + tables


def where_text(one: Named) -> str:
    """`: its forward takes 30 ms more than its peers' 4.0 ms, before all_reduce 2 of group 1`."""
    longer = one.longer
    its = "their" if len(one.cost.ranks) > 1 else "its"
    slot = "".join(f", {place}" for place in (one.slot, one.module and f"in module {one.module}") if place)
    if longer.phase is None or longer.value is None or longer.usual is None:
        return slot
    when = " then"
    if longer.often >= MOST:
        when = "" if one.cost.period is None else " in each step"
    takes = f"{its} {_PHASES[longer.phase]} takes {seconds(longer.value)}{when}"
    return f": {takes}, {its} peers' {seconds(longer.usual)}{slot}"


def _shares(cost: Cost) -> dict[str, Any]:
    return {"share": cost.share, "share_low": cost.low, "share_high": cost.high}


def _share(cost: Cost) -> str:
    return f"{percent(cost.share)} ({max(0.0, cost.low) * 100:.0f} to {percent(cost.high)})"


def _rarely(cost: Cost) -> str:
    """That what a rank costs is a stall or two, which may be chance."""
    return f", in {percent(cost.frequency)} of the steps" if cost.share >= MIN_SHARE and cost.frequency < FEW else ""


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _clocks(study: Study, cost_s: float) -> str:
    """That the hosts' clocks are too far apart to tell who waited for a cost of `cost_s`; empty where they do."""
    unsure = uncertainty_between(study.facts)
    if unsure is not None and unsure <= cost_s:
        return ""
    apart = "an unknown time" if unsure is None else seconds(unsure)
    return f"the hosts' clocks may be {apart} apart, so who waited for whom is not known"


def _too_little(study: Study) -> str:
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
