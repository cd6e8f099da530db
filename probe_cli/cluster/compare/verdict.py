"""From what ranks cost the job to one verdict: who is named, that the cost rotates, that there is none, or that it
cannot be told.

A name takes a cost of 5 % of the job's time or more with 95 % confidence. So does the all-clear: it is given only where
such a cost would have been seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probe_cli.cluster.delays.costs import Cost
from probe_cli.text import num_ranks, percent, seconds, sum_up

from .comparison import Verdict
from .crowded import Crowded, crowded
from .evidence import beside, line_text
from .facts import Facts, Who
from .named import MIN_SHARE, MOST, STAGES, Named, each, too_little, unclear_clocks, who_text
from .phases import Longer
from .starved import EXPLAINS, starved, usual_delay
from .study import Study
from .suspended import Suspended, data_late_at, suspended

__all__ = ["judge"]

#: A job that would not have shown this cost gets no all-clear.
MAX_VISIBLE = 0.10
#: A rank that may cost so much is no reason to say that the cost rotates; if all together may, there is no all-clear.
UNSURE = 0.10
#: What is there in fewer of the steps is told with that.
FEW = 0.2
#: Ranks that wait for a CPU for such a part of the time are on a busy host.
MIN_DELAY = 0.05
#: Where ranks stand still for data for such a part of what others work longer, the one may be for the other.
TAKES_ITS_PLACE = 0.6
#: And a network that data take such a part of the time on is worth a word.
MUCH = 0.2

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


def judge(study: Study, found: Sequence[Named], told: Mapping[Who, Facts] | None = None) -> Verdict:
    """The verdict where the job runs; `found` is what `named` found, `told` what other tables say of some ranks."""
    analysis = study.analysis
    num_steps = len(analysis.steps)
    if why := too_little(study):
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
        if alone.share >= UNSURE and alone.low >= MIN_SHARE and not unclear_clocks(study, each(alone)):
            return _alone_verdict(study, alone, data, over, about)
    if unclear := unclear_clocks(study, MIN_SHARE * analysis.step_s):
        return Verdict("not enough data", f"not enough data: {unclear}: {over}", **about)
    most, delay = study.most_costly, usual_delay(study, told or {}) or 0.0
    if most.share >= UNSURE or (most.share >= MIN_SHARE and most.share > total.share / 2):
        late = Named(most, who_text(study, most), Longer(None), None, starved=starved(study, most.ranks, told or {}))
        if late.busy_host is not None:
            return _busy_verdict(late, over, about)
        if delay < EXPLAINS * total.share:
            return _may_be_chance_verdict(study, told or {}, over, about)
    if total.low >= MIN_SHARE:
        if delay >= EXPLAINS * total.share:
            return _busy_for_all_verdict(study, total, delay, over, about)
        phase = study.rotating_phase()
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
    if behind := _longer_while_data_come(study):
        ranks, share = behind
        who = num_ranks(sorted(study.facts[at].who.rank for at in ranks))
        text = (
            f"not enough data: {who} work{'s' * (len(ranks) == 1)} longer than the others by {percent(share)} of the"
            " time, for as much of which those stand still for data on their way: whether they wait for"
            f" {'it' if len(ranks) == 1 else 'them'} is not known: {over}"
        )
        return Verdict("not enough data", text, **_shares(total), **about)
    tables = _tables_text(study, most, told or {}) if most.share >= MIN_SHARE / 2 else ""
    hint = f"; {who_text(study, most)} costs most, {percent(most.share)}{tables}" if tables else ""
    text = (
        f"no rank holds the job up: {over}; all differences between them cost {_share(total)} of its time together,"
        f" and what costs {percent(max(MIN_SHARE, analysis.smallest_visible))} or more would have been seen{hint}{data}"
    )
    return Verdict("nobody", text, **_shares(total), **about)


def _longer_while_data_come(study: Study) -> tuple[list[int], float] | None:
    """Ranks that work longer than others that do the same, and by which part of the time, where those stand still for
    data by about as much: calls that go on beside the work, and a thread of the long ranks that gets no core for them,
    look like that. Such ranks get no all-clear."""
    analysis = study.analysis
    own, transfer = (times.sum(axis=1) / analysis.time_s for times in (analysis.own, analysis.transfer))
    for work in np.unique(analysis.work):
        alike = np.flatnonzero(analysis.work == work)
        excess = own[alike] - own[alike].min()
        long, others = alike[excess >= MIN_SHARE], alike[excess < MIN_SHARE]
        if len(long) and len(others):
            by = float(own[long].mean() - own[others].mean())
            if float(transfer[others].mean() - transfer[long].mean()) >= TAKES_ITS_PLACE * by:
                return long.tolist(), by
    return None


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
        beside={"suspended": (stopped.part, None)},
        cost=cost.seconds_a_step,
        cost_each=each(cost),
        **_shares(cost),
        frequency=cost.frequency,
        period=cost.period,
        since=cost.since,
        **{**about, "evidence": "sample period"},
    )


def _alone_verdict(study: Study, cost: Cost, data: str, over: str, about: dict[str, Any]) -> Verdict:
    """The verdict where all ranks wait for work that only some have, so that nobody says how long it ought to take."""
    who, slot = who_text(study, cost), study.slot(cost, 1)
    verb, does = ("hold", "do") if len(cost.ranks) > 1 else ("holds", "does")
    text = (
        f"{who} {verb} the job up, by up to {cost_text(cost)}: all others wait for work that only {who} {does}"
        f"{f', {slot}' if slot else ''}{data}: {over}"
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


def _may_be_chance_verdict(study: Study, told: Mapping[Who, Facts], over: str, about: dict[str, Any]) -> Verdict:
    """The verdict where one rank has most of what is lost, and too few long stretches of it to tell."""
    most = study.most_costly
    text = (
        f"not enough data: {who_text(study, most)} may cost {_share(most)} of the job's time, in"
        f" {percent(most.frequency)} of the steps, but that may be chance{_tables_text(study, most, told)};"
        f" compare more steps with --steps: {over}"
    )
    return Verdict("not enough data", text, **about)


def _tables_text(study: Study, cost: Cost, told: Mapping[Who, Facts]) -> str:
    """Return what other tables show of a rank that is not named."""
    who = study.facts[cost.ranks[0]].who
    if who not in told:
        return ""
    peers = [told[other] for at in study.peers(cost) if (other := study.facts[at].who) in told]
    return "".join(f"; {text}" for text in beside(told[who], peers, *study.span(who), starved=False).sentences)


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
