"""Who holds the job up, and with what.

In a synchronous job every rank's step takes equally long: whoever is fast waits. So the durations say nothing. Asked,
in this order, as far as it can be known:

1. Who came last to the collectives, by how much, in most steps? That one is slow, wherever the others wait.
2. Without that: whose steps are longer (the job is not synchronous), who does more outside backward (where DDP's C++
   waits), who waits longer for data?

What it is slow with is the phase in which it takes longer than the others. If no phase is longer, it is its backward:
the others' backward holds their wait, so all last the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from .alignment import aligned, common_steps
from .arrivals import Arrivals, Met, arrivals, by_collective
from .clocks import one_clock_a_host, uncertainty_between
from .comparison import Verdict
from .facts import Facts, Who
from .phases import EVERY_STEP, SAMPLED_STEPS, Phases, differences, own_by_step, phases_of
from .recent import with_recent
from .stalls import now_and_then
from .standing_out import MIN_SHARE, MIN_STEPS, Standing, standings, those_that_stand_out
from .words import percent, seconds, sum_up

__all__ = ["Found", "find", "of_host"]

#: As many as are asked for.
MAX_STEPS = 5_000
#: Collectives of steps that are older than this say nothing about now.
OLD_S = 60.0

#: Before "takes 210 ms a step, the median rank's 4 ms".
_WORDS = {
    "data_wait": "its data loading",
    "forward": "its forward",
    "optimizer": "its optimizer",
    "other": "what it does outside data loading, forward, backward and optimizer (a checkpoint, logging, …)",
    "forward or other": "what it does outside data loading, backward and optimizer",
}
_EVIDENCE = {
    "collectives": "by when they came to collectives",
    "durations": "by how long their steps take",
    "phases": "by what they do outside backward (a slow backward would not show)",
    "data": "by how long they wait for data",
}


@dataclass(frozen=True)
class Found:
    """A verdict and what it was made of, for the tables."""

    verdict: Verdict
    #: The ranks that were compared, on one clock and with common step numbers.
    facts: tuple[Facts, ...]
    steps: tuple[int, ...]
    step_s: float
    standings: dict[Who, Standing[Who]]
    phases: dict[Who, Phases]
    arrivals: Arrivals
    notes: tuple[str, ...]

    def wait(self, who: Who) -> float | None:
        """What a rank waits for the last to come to a collective: the median over the steps."""
        waits = [by_rank[who] for by_rank in self.arrivals.waits.values() if who in by_rank]
        return median(waits) if waits else None


def find(facts: Sequence[Facts], num_steps: int) -> Found:
    """Who is slow in the newest `num_steps` steps that the ranks have in common."""
    facts = aligned([with_recent(fact) for fact in one_clock_a_host(facts)])
    collectives = by_collective(facts)
    steps, compared, notes = _compared(facts, collectives.values(), num_steps)
    if len(compared) < 2 or len(steps) < MIN_STEPS:
        verdict = Verdict("not enough data", _why_not(facts, compared, steps), num_steps=len(steps))
        return Found(verdict, tuple(facts), tuple(steps), 0.0, {}, {}, Arrivals(), tuple(notes))
    wanted = set(steps)
    step_s = median(step.duration for fact in compared for step in fact.steps if step.number in wanted)
    phases = {fact.who: known for fact in compared if (known := phases_of(fact, wanted)) is not None}
    seen = arrivals(collectives.values(), wanted)
    evidence, stood = _stood(compared, steps, step_s, seen, notes)
    named = those_that_stand_out(stood)
    if not named and evidence == "collectives" and (stalls := now_and_then(seen, step_s)) is not None:
        notes.append(stalls)
    found = Found(
        Verdict("nobody", _nobody(compared, len(steps), step_s, evidence, stood)),
        tuple(compared),
        tuple(steps),
        step_s,
        {standing.key: standing for standing in stood},
        phases,
        seen if evidence == "collectives" else Arrivals(),
        tuple(notes),
    )
    return replace(found, verdict=_verdict(found, named, evidence))


def of_host(who: Who, facts: Sequence[Facts]) -> str:
    """` (on node2)`, where there are several hosts."""
    return f" (on {who.host})" if len({fact.who.host for fact in facts}) > 1 else ""


def _compared(
    facts: Sequence[Facts], collectives: Collection[Met], num_steps: int
) -> tuple[list[int], list[Facts], list[str]]:
    """Steps in common, those that have enough of them, and notes on those that have not.

    Rows of collectives that C++ called come late: where there are enough steps with them, these are taken.
    """
    notes = []
    steps = common_steps(facts, num_steps)
    compared = []
    for fact in facts:
        num = len({step.number for step in fact.steps} & set(steps))
        if num >= MIN_STEPS or (num and num == len(steps)):
            compared.append(fact)
        else:
            what = f"has {num} of these steps" if fact.steps else "has recorded no step"
            notes.append(f"{fact.who} is not compared: it {what}")
    with_calls = _with_collectives(compared, collectives, num_steps)
    if len(with_calls) >= MIN_STEPS and (age := _ended(compared, steps[-1]) - _ended(compared, with_calls[-1])) < OLD_S:
        if age > 1.0:
            notes.append(
                f"the newest of these steps ended {seconds(age)} ago: of later ones the collectives are not known"
            )
        steps = with_calls
    return steps, compared, notes


def _with_collectives(facts: Sequence[Facts], collectives: Iterable[Met], num_steps: int) -> list[int]:
    """The newest steps in common in whose collectives all ranks are known that ever are."""
    in_common = set(common_steps(facts, MAX_STEPS))
    ranks: dict[int, set[Who]] = defaultdict(set)
    for met in collectives:
        if met.step in in_common:
            ranks[met.step].update(met.starts)
    everybody = max(map(len, ranks.values()), default=0)
    return sorted(step for step, known in ranks.items() if len(known) == everybody)[-num_steps:]


def _ended(facts: Sequence[Facts], number: int) -> float:
    """When a step ended, on our clock as far as it is known."""
    offsets = [(fact.clock.offset if fact.clock else 0.0, fact) for fact in facts]
    return median(step.ended - offset for offset, fact in offsets for step in fact.steps if step.number == number)


def _stood(
    facts: Sequence[Facts], steps: Sequence[int], step_s: float, seen: Arrivals, notes: list[str]
) -> tuple[str, list[Standing[Who]]]:
    """How the ranks stand, and by what."""
    if len(seen.late) >= MIN_STEPS:
        late: dict[Who, list[float]] = {fact.who: [] for fact in facts}
        for by_rank in seen.late.values():
            for who in late.keys() & by_rank.keys():
                late[who].append(by_rank[who])
        stood = standings(late, step_s)
        unsure = uncertainty_between(facts)
        if unsure is not None and unsure <= max(MIN_SHARE * step_s, stood[0].effect / 2):
            return "collectives", stood
        by = "an unknown time" if unsure is None else seconds(unsure)
        notes.append(
            f"the hosts' clocks may be {by} apart, a step takes {seconds(step_s)}: who came last to a collective is"
            " not known, so the phases of the steps are compared"
        )
    else:
        notes.append(
            f"collectives that ranks have in common are known of {len(seen.late)} of these steps,"
            f" {MIN_STEPS} are needed to say who came last: the phases of the steps are compared"
        )
    others = []
    for evidence, name in (("durations", "duration"), ("phases", ""), ("data", "data_wait")):
        values = {fact.who: own_by_step(fact, name) for fact in facts}
        stood = standings(differences(values, steps), step_s)
        if those_that_stand_out(stood):
            return evidence, stood
        others.append((evidence, stood))
    return others[1]


def _verdict(found: Found, named: Sequence[Standing[Who]], evidence: str) -> Verdict:
    num_steps = len(found.steps)
    if not named:
        top = max(found.standings.values(), key=lambda standing: standing.effect)
        return Verdict(
            "nobody",
            found.verdict.sentence,
            num_steps=num_steps,
            step=found.step_s,
            share=top.share,
            score=top.score,
            evidence=evidence,
        )
    names = {standing.key for standing in named}
    first, *_ = explained = [_explain(found, standing, names, evidence) for standing in named]
    return Verdict(
        "stands out",
        sum_up([sentence for sentence, *_ in explained]),
        ranks=tuple(standing.key.rank for standing in named),
        where=first[1],
        value=first[2],
        median=first[3],
        wait=found.wait(named[0].key),
        others_wait=_others_wait(found, names),
        num_steps=num_steps,
        step=found.step_s,
        share=named[0].share,
        score=named[0].score,
        evidence=evidence,
    )


def _explain(
    found: Found, standing: Standing[Who], names: set[Who], evidence: str
) -> tuple[str, str, float | None, float | None]:
    """The sentence on one rank, the phase, its time there and that of the median of the ranks that are not named."""
    who = standing.key
    mine = found.phases.get(who)
    others = [phases for other, phases in found.phases.items() if other not in names]
    head = f"{who}{of_host(who, found.facts)} is slow: "
    tail = _waits(found, who, names)
    if mine is None or not others:
        text = f"it comes {seconds(standing.effect)} a step later than the others to their collectives"
        return head + text + tail, "unknown", None, None
    enough = standing.effect / 3
    longer = _longest(mine, others, (*EVERY_STEP, *(("backward",) if evidence == "durations" else ())))
    split = _longest(mine, others, SAMPLED_STEPS)
    if split is not None and (longer is None or longer[0] < enough or longer[1] == "forward or other"):
        # Where forward ends and other begins is known of sampled steps only. On a GPU the two may also cancel out:
        # a rank that is late in its forward waits less for the device afterwards.
        longer = split if split[0] >= enough else longer
    if longer is None or longer[0] < enough or longer[1] == "backward":
        late = f"it comes {seconds(standing.effect)} a step later than the others to their collectives"
        if evidence == "durations":
            late = f"its steps take {seconds(standing.effect)} longer than the median rank's"
        text = f"{late}, and no other phase of it is longer, so it is most likely its backward"
        return head + text + tail, "backward", mine.backward, _usual(others, "backward")
    _, name, value, usual = longer
    takes = f"{_WORDS[name]} takes {seconds(value)} a step, the median rank's {seconds(usual)}"
    return head + takes + tail, name, value, usual


def _longest(mine: Phases, others: Sequence[Phases], names: Sequence[str]) -> tuple[float, str, float, float] | None:
    """The phase in which a rank exceeds the others most: by how much, its name, its time and theirs."""
    found = []
    for name in names:
        value, usual = mine.named(name), _usual(others, name)
        if value is not None and usual is not None:
            found.append((value - usual, name, value, usual))
    return max(found, default=None)


def _usual(others: Sequence[Phases], name: str) -> float | None:
    known = [value for phases in others if (value := phases.named(name)) is not None]
    return median(known) if known else None


def _waits(found: Found, who: Who, names: set[Who]) -> str:
    mine, others = found.wait(who), _others_wait(found, names)
    if mine is None or others is None:
        return ""
    return f"; it waits {seconds(mine)} a step in collectives, the others {seconds(others)}"


def _others_wait(found: Found, names: set[Who]) -> float | None:
    waits = [wait for fact in found.facts if fact.who not in names if (wait := found.wait(fact.who)) is not None]
    return median(waits) if waits else None


def _nobody(
    facts: Sequence[Facts], num_steps: int, step_s: float, evidence: str, stood: Sequence[Standing[Who]]
) -> str:
    top = max(stood, key=lambda standing: standing.effect)
    return (
        f"no rank stands out: {len(facts)} ranks compared over {num_steps} steps of {seconds(step_s)},"
        f" {_EVIDENCE[evidence]}; the most that one is behind the median of the others is {seconds(top.effect)} a step"
        f" ({percent(top.share)}, rank {top.key.rank})"
    )


def _why_not(facts: Sequence[Facts], compared: Sequence[Facts], steps: Sequence[int]) -> str:
    if len(facts) < 2:
        return f"not enough data: it takes two ranks to compare, and {len(facts)} answered"
    if not any(fact.steps for fact in facts):
        return "not enough data: no rank has recorded a step yet"
    if len(steps) < MIN_STEPS:
        return f"not enough data: the ranks have {len(steps)} steps in common, {MIN_STEPS} are needed"
    return f"not enough data: {len(compared)} of {len(facts)} ranks have {MIN_STEPS} of the steps in common"
