"""Whether a job hangs, and who it waits for: from two looks at its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from statistics import median

from probe_agent.wire import TargetInfo
from probe_cli.text import seconds

from .chain import Cause, Stop, stops
from .doing import Activity, Doing, doing, has_moved
from .looks import Look, as_ranks
from .text import sentence

__all__ = ["LONG_S", "State", "Verdict", "is_long", "judge"]

#: No step for so long, for so many steps' time, and for so many times the longest known.
LONG_S, LONG_STEPS, LONGEST = 10.0, 10.0, 2.0
#: Of so few collectives it is not known how long the job usually takes between them.
FEW_CALLS, LONG_START_S = 10, 300.0
#: A rank that saves, loads, compiles or still works has so long before the job is said to hang.
BUSY_S, BUSY_STEPS = 120.0, 30.0


class State(Enum):
    """What is said of the job; the exit code of each."""

    NONE = ("no hang", 0)
    SLOW = ("slow", 0)
    HANGS = ("hangs", 1)
    UNKNOWN = ("unknown", 3)

    @property
    def label(self) -> str:
        """Its name in JSON."""
        return self.value[0]

    @property
    def exit_code(self) -> int:
        """What `probe hang` exits with."""
        return self.value[1]


@dataclass(frozen=True)
class Verdict:
    """One sentence on the job, and what it rests on."""

    state: State
    sentence: str
    #: Ranks that hold up the others.
    ranks: tuple[int, ...] = ()
    cause: str = ""
    stops: tuple[Stop, ...] = ()
    doing: Mapping[int, Doing] = field(default_factory=dict)
    #: Seconds without progress of any rank; None where that is not known.
    stands_s: float | None = None
    #: Seconds until torch gives up on the call that has waited longest.
    aborts_in_s: float | None = None


def judge(
    targets: Mapping[int, TargetInfo],
    before: Mapping[int, Look],
    after: Mapping[int, Look],
    *,
    between_s: float,
    missing: int = 0,
) -> Verdict:
    """The verdict on ranks that were looked at twice, `between_s` apart; `missing` is the number of ranks of which
    nothing is known."""
    acts = {
        rank: doing(seen.stacks, state=targets[rank].state, is_silent=bool(seen.gaps)) for rank, seen in after.items()
    }
    acts.update({rank: Doing(Activity.ENDED) for rank, target in targets.items() if not target.alive})
    if not any(target.alive for target in targets.values()):
        return Verdict(State.NONE, f"no rank is alive: {_how_they_ended(targets)}", doing=acts)
    moved = sorted(rank for rank in after if rank in before and before[rank].progress != after[rank].progress)
    if moved:
        return Verdict(State.NONE, _progress(moved, before, after, between_s), doing=acts)
    waiting = [rank for rank, target in targets.items() if target.alive and not target.state.startswith("stopped")]
    ranks = as_ranks(after, waiting)
    found = tuple(stops(ranks))
    out = tuple(sorted(set(targets) - set(waiting)))
    stands_s, stands_long = _standstill(after)
    verdict = Verdict(State.UNKNOWN, "", stops=found, doing=acts, stands_s=stands_s)
    if out:
        verdict = replace(verdict, ranks=out, cause="gone")
        about = [_out(out, targets), *(sentence(stop, ranks) for stop in found[:1])]
    elif found:
        verdict = replace(verdict, ranks=found[0].ranks, cause=found[0].cause.value)
        about = [sentence(found[0], ranks)]
    else:
        verdict = replace(verdict, ranks=tuple(sorted(after)), cause="no progress")
        about = []
    about += [f"rank {rank} {acts[rank]}" for rank in verdict.ranks[:4] if rank in after and rank not in out]
    said = "; ".join(about)
    if stands_s is None:
        known = "nothing has moved for {}, and how long this job usually takes is not known"
        return replace(verdict, sentence=f"{known.format(seconds(between_s))}: {said}")
    age = f"no rank has ended a step or called a collective for {seconds(stands_s)}"
    busy = [rank for rank in verdict.ranks if _is_busy(rank, acts, before, after)]
    if not stands_long and not out:
        return replace(verdict, state=State.NONE, ranks=(), sentence=f"no hang so far: {age}, not long for this job")
    if busy and len(busy) == len(verdict.ranks) and stands_s < max(BUSY_S, BUSY_STEPS * _usual(after)):
        return replace(verdict, state=State.SLOW, sentence=f"no hang so far: {said}; {age}")
    if verdict.cause == Cause.UNSEEN.value or (missing and verdict.cause == "no progress"):
        return replace(verdict, sentence=f"the job stands still: {said}; {age}")
    aborts = [
        call.called + call.timeout_s
        for rank in ranks.values()
        for call in rank.calls
        if call.timeout_s and not call.is_over
    ]
    return replace(
        verdict, state=State.HANGS, sentence=f"the job hangs: {said}; {age}", aborts_in_s=min(aborts, default=None)
    )


def is_long(age: float, usual: float, longest: float) -> bool:
    """Whether `age` seconds without a step are long for a job whose steps take so long in the median, and at most."""
    return age >= max(LONG_S, LONG_STEPS * usual, LONGEST * longest)


def _standstill(looks: Mapping[int, Look]) -> tuple[float | None, bool]:
    """For how long no rank has got on, and whether that is long for this job; None where nothing tells."""
    paces = [seen.steps for seen in looks.values() if seen.steps is not None]
    ages = [seen.newest_call_age for seen in looks.values() if seen.newest_call_age is not None]
    if paces:
        age = max(0.0, min([*ages, *(pace.age for pace in paces)]))
        return age, is_long(age, _usual(looks), max(pace.longest for pace in paces))
    calls = [seen.calls for seen in looks.values() if seen.calls is not None]
    ages += [pace.age for pace in calls]
    if not ages:
        return None, False
    age = max(0.0, min(ages))
    if max((pace.num for pace in calls), default=0) < FEW_CALLS:
        return age, age >= LONG_START_S
    return age, is_long(age, 0.0, max(pace.longest for pace in calls))


def _usual(looks: Mapping[int, Look]) -> float:
    medians = [seen.steps.median for seen in looks.values() if seen.steps is not None]
    return median(medians) if medians else 0.0


def _is_busy(rank: int, acts: Mapping[int, Doing], before: Mapping[int, Look], after: Mapping[int, Look]) -> bool:
    """Whether the rank works, or does what may take a healthy job a minute or two."""
    if rank not in before or rank not in after:
        return False
    if acts[rank].activity in (Activity.ENDED, Activity.STOPPED, Activity.GIL):
        return False
    return acts[rank].activity.takes_long or bool(has_moved(before[rank].stacks, after[rank].stacks))


def _progress(moved: list[int], before: Mapping[int, Look], after: Mapping[int, Look], between_s: float) -> str:
    steps = [
        (then.step, now.step)
        for rank in moved
        if (then := before[rank]).step is not None and (now := after[rank]).step is not None and then.step != now.step
    ]
    if steps:
        return f"no hang: the job has come from step {steps[0][0]} to {steps[0][1]} in {seconds(between_s)}"
    return f"no hang: rank {moved[0]} has called a collective within {seconds(between_s)}"


def _out(ranks: tuple[int, ...], targets: Mapping[int, TargetInfo]) -> str:
    said = []
    for rank in ranks[:4]:
        target = targets[rank]
        named = f"rank {rank} (pid {target.pid} on {target.host})"
        if not target.alive:
            said.append(f"{named} has ended" + (f": it {target.ended}" if target.ended else ""))
        else:
            said.append(f"{named} is stopped by a signal; resume it with: kill -CONT {target.pid}")
    return "; ".join(said)


def _how_they_ended(targets: Mapping[int, TargetInfo]) -> str:
    told = [f"rank {rank} {target.ended}" for rank, target in sorted(targets.items()) if target.ended]
    return "; ".join(told[:4]) or "how they ended is not known"
