"""Verdict on a job, from two looks at its ranks and what was found out about those that are to blame."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from probe_agent.wire import TargetInfo
from probe_cli.cluster.ranks.ended import has_lost_peer, in_order_of_end, told_first
from probe_cli.text import num_ranks, percent, ranks_text, seconds

from .calls import Rank
from .chain import Cause, Stop, stops
from .details import Details
from .doing import Activity, Doing, doing, has_moved, trains
from .ends import aborted_by_gloo, first_to_blame, hung_before, stopped_or_ended
from .looks import Look, as_ranks
from .standstill import LONG_S, LONG_START_S, is_early, not_long, standstill, usual
from .text import sentence, still_in

__all__ = ["PATIENCE_S", "State", "Verdict", "judge"]

#: Then a rank that others wait for, and that neither works nor waits for storage, has so long.
IDLE_START_S = 60.0
#: A rank that saves, loads, reads, compiles or works has so long before the job is said to hang.
PATIENCE_S, PATIENCE_STEPS = 120.0, 30.0
#: A step that takes so many times the median, and so much longer, is slow.
SLOW_STEPS, SLOW_S = 5.0, 1.0
#: A training thread that uses so much of a CPU between two looks works, also where both find it waiting for the threads
#: that share its work. One that hangs uses none, one that sleeps and looks again for a sign 1 %.
WORKS_SHARE = 0.05
#: One that uses so much runs, also where it was seen as it waited for the GIL.
RUNS_SHARE = 0.25
#: A process that has run for so long should have left init_process_group.
LONG_INIT_S = 60.0
#: What a process without work does as well: somebody may give it some.
_WAITS_FOR_WORK = (Activity.LOOP, Activity.INPUT, Activity.DEBUGGER, Activity.EXIT)


#: Ends of chains that do not go away by waiting, unless a rank works.
_CERTAIN = (Cause.ABSENT, Cause.MISMATCH, Cause.CYCLE, Cause.NO_PEER)


class State(Enum):
    """What is said of the job; the exit code of each."""

    NONE = ("no hang", 0)
    SLOW = ("slow", 0)
    ENDED = ("ended", 0)
    HANGS = ("hangs", 1)
    DIED = ("died", 1)
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
    """One sentence on the job, and its evidence."""

    state: State
    sentence: str
    #: Ranks that hold up the others.
    ranks: tuple[int, ...] = ()
    cause: str = ""
    stops: tuple[Stop, ...] = ()
    doing: Mapping[int, Doing] = field(default_factory=dict)
    #: Seconds without progress of any rank; None if that is not known.
    stands_s: float | None = None
    #: What the ranks do that keep a job standing and may be at work, so that it is not said to hang yet.
    may_go_on: str = ""
    #: Seconds until torch gives up on the call that has waited longest.
    aborts_in_s: float | None = None


def judge(
    targets: Mapping[int, TargetInfo],
    before: Mapping[int, Look],
    after: Mapping[int, Look],
    *,
    between_s: float,
    missing: Collection[int] = (),
    details: Mapping[int, Details] | None = None,
    patience_s: float = PATIENCE_S,
    now: float | None = None,
) -> Verdict:
    """Return the verdict on ranks that were looked at twice, `between_s` apart. Nothing is known of the ranks in
    `missing`; `details` has what was asked about the ranks of an earlier verdict; `now` is in seconds since 1970."""
    found_out, now = details or {}, time.time() if now is None else now
    acts = {
        rank: doing(seen.stacks, state=targets[rank].state, is_silent=bool(seen.gaps)) for rank, seen in after.items()
    }
    living = {rank for rank, target in targets.items() if target.alive and not target.ended}
    acts.update({rank: Doing(Activity.ENDED) for rank in targets if rank not in living})
    if targets and not living:
        return _after_the_end(targets, after, acts, now)
    moved = sorted(rank for rank in after if rank in before and after[rank].is_ahead_of(before[rank]))
    if moved:
        return replace(_progress(moved, before, after, between_s), doing=acts)
    stopped = [rank for rank, act in acts.items() if act.activity is Activity.STOPPED]
    waiting = [rank for rank in living if rank not in stopped]
    # Of a rank without a recorder only its stack is known: in a call, but not in which one.
    told = {
        rank: seen
        for rank, seen in after.items()
        if seen.come or seen.groups or acts[rank].activity not in (Activity.COLLECTIVE, Activity.UNKNOWN)
    }
    ranks = as_ranks(told, waiting)
    found = tuple(stops(ranks))
    stands_s, stands_long = standstill(after)
    verdict = Verdict(State.UNKNOWN, "", stops=found, doing=acts, stands_s=stands_s)
    gone = first_to_blame(targets, living, bool(found))
    lost = sorted(set(targets) - living - gone) if not found else []
    out = tuple(sorted({*stopped, *gone}))
    # Nobody is in a call of a group: the ranks still meet, or the last one has not come.
    meets = sorted(rank for rank, act in acts.items() if act.activity is Activity.INIT)
    unseen = {*missing, *(rank for rank, act in acts.items() if act.activity is Activity.UNKNOWN)}
    hung = hung_before(targets, after, now) if gone else None
    if hung is not None:
        verdict = replace(verdict, ranks=hung.stop.ranks, cause=hung.stop.cause.value, stops=(hung.stop,))
        about = [sentence(hung.stop, hung.ranks)]
    elif out:
        verdict = replace(verdict, ranks=out, cause="gone")
        about = [stopped_or_ended(out, targets, stopped), *aborted_by_gloo(out, targets)]
        about += [sentence(stop, ranks) for stop in found[:1]]
    elif lost and all(has_lost_peer(targets[rank]) for rank in lost):
        verdict = replace(verdict, ranks=tuple(sorted(living)), cause="left")
        about = [f"rank{'s' if lost[1:] else ''} {ranks_text(lost)} lost the connection to another rank, and ended"]
    elif found:
        stop = _seen_elsewhere(found[0], acts)
        verdict = replace(verdict, ranks=_not_in_calls(stop, acts), cause=stop.cause.value)
        about = [sentence(stop, ranks), *filter(None, [still_in(stop, ranks)])]
    elif meets and (late := sorted({*targets, *unseen} - set(meets))):
        verdict = replace(verdict, ranks=tuple(late), cause="init")
        about = [_late(late, meets, targets, acts, unseen)]
    elif meets:
        verdict = replace(verdict, ranks=tuple(meets), cause="init")
        about = [f"all {len(meets)} ranks wait in {acts[meets[0]].detail}{_store(targets, meets)}"]
    elif absent := _absent_by_stacks(acts, unseen):
        verdict = replace(verdict, ranks=absent, cause=Cause.ABSENT.value)
        others = sorted(set(acts) - set(absent))
        calls = ", ".join(sorted({acts[rank].detail or "a collective" for rank in others}))
        about = [f"{num_ranks(others)} wait{'' if others[1:] else 's'} in {calls}, and nothing tells for whom"]
    else:
        verdict = replace(verdict, ranks=tuple(sorted(after)), cause="no progress")
        about = []
    for rank in verdict.ranks[:4]:
        if rank in after and rank not in gone:
            used = _used(rank, before, after) / between_s if acts[rank].activity is Activity.NATIVE else 0.0
            works = f", and has used {percent(used)} of a CPU meanwhile" if used >= WORKS_SHARE else ""
            act = acts[rank] if used < RUNS_SHARE else replace(acts[rank], activity=Activity.PYTHON)
            about += [f"rank {rank} {act}{works}", *found_out.get(rank, Details()).sentences]
    about += told_first(targets.values()) if hung is not None else []
    said = "; ".join(dict.fromkeys(about))
    if hung is not None:
        return replace(verdict, state=State.HANGS, sentence=f"the job hangs: {said}")
    store_failure = next((one.store_failure for one in found_out.values() if one.store_failure), "")
    if store_failure and (stands_s is not None or _age(targets, meets) > LONG_INIT_S):
        return replace(verdict, state=State.HANGS, cause="store", sentence=f"the job hangs: {said}")
    if stands_s is None and verdict.cause == "init":
        is_long = not unseen and _age(targets, meets) > LONG_INIT_S
        state, begins = (State.HANGS, "the job hangs") if is_long else (State.UNKNOWN, "the job has not begun")
        return replace(verdict, state=state, sentence=f"{begins}: {said}")
    if any(one.is_deadlock for one in found_out.values()):
        return replace(verdict, state=State.HANGS, sentence=f"the job hangs: {said}")
    age = "no rank has ended a step or called a collective for {}"
    if stands_s is None:
        in_calls_s, asleep_s = _all_in_calls_s(targets, living, acts, unseen, now), _asleep_s(targets, after, acts, now)
        stands_s = max(in_calls_s, asleep_s)
        has_trained = any(one.has_trained for one in found_out.values())
        is_known = in_calls_s >= IDLE_START_S or (has_trained and asleep_s >= LONG_START_S)
        if not is_known and not (any(stop.is_of_sends for stop in found) and stands_s >= LONG_S):
            known = "nothing has moved for {}, and how long this job usually takes is not known"
            verdict = replace(verdict, sentence=f"{known.format(seconds(max(stands_s, between_s)))}: {said}")
            if not has_trained or any(one.may_be_healthy for one in found_out.values()):
                return verdict
            return replace(verdict, stands_s=asleep_s, may_go_on=said)
        verdict, stands_long = replace(verdict, stands_s=stands_s), True
        age = "its training thread has not run for {}" if asleep_s > in_calls_s else age
    age = age.format(seconds(stands_s))
    # Who joins a group waits for the others; if these wait in calls for those who join it, no rank is at work.
    others = [rank for rank in targets if rank not in meets]
    is_deadlock = bool(meets and others and not unseen) and all(_is_in_a_call(ranks.get(rank)) for rank in others)
    busy = [
        rank
        for rank in verdict.ranks
        if not (is_deadlock and rank in meets) and _is_busy(rank, verdict, before, after, between_s, found_out)
    ]
    is_idle = bool(found) and found[0].cause in _CERTAIN and not busy
    if is_early(after) and is_idle and stands_s >= IDLE_START_S:
        stands_long = True
    if not stands_long and not out and verdict.cause != "left":
        waits = f"{said}; " if found and stands_s >= LONG_S else ""
        early = "which may be its usual time" if is_early(after) else not_long(after)
        return replace(verdict, state=State.NONE, ranks=(), sentence=f"no hang so far: {waits}{age}, {early}")
    if busy and len(busy) == len(verdict.ranks) and stands_s < max(patience_s, PATIENCE_STEPS * usual(after)):
        return replace(verdict, state=State.SLOW, sentence=f"no hang so far: {said}; {age}", may_go_on=said)
    if verdict.cause == Cause.UNSEEN.value or (unseen and verdict.cause in ("no progress", "init")):
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


def _seen_elsewhere(stop: Stop, acts: Mapping[int, Doing]) -> Stop:
    """Return the stop without the ranks that seem not to have come, and of which only old rows tell: one whose stack
    could not be read may be in the call by now, or about to end. If it is all of them, nothing is known of them."""
    if stop.cause is not Cause.ABSENT:
        return stop
    seen = tuple(rank for rank in stop.ranks if rank not in acts or acts[rank].activity is not Activity.UNKNOWN)
    return replace(stop, ranks=seen) if seen else replace(stop, cause=Cause.UNSEEN)


def _not_in_calls(stop: Stop, acts: Mapping[int, Doing]) -> tuple[int, ...]:
    """Return the ranks to blame for a stop. Of those that have not come to a collective, one whose stack is in a call
    that nobody has recorded, such as a receive, waits itself: others are to blame, if there are any."""
    if stop.cause is not Cause.ABSENT:
        return stop.ranks
    others = tuple(rank for rank in stop.ranks if rank not in acts or acts[rank].activity is not Activity.COLLECTIVE)
    return others or stop.ranks


def _absent_by_stacks(acts: Mapping[int, Doing], unseen: Collection[int]) -> tuple[int, ...]:
    """Return the ranks that are in no call while most are, where only stacks tell: sends and receives from before the
    recorder came leave no trace on gloo. Nobody where a rank could not be seen."""
    others = tuple(sorted(rank for rank, act in acts.items() if act.activity is not Activity.COLLECTIVE))
    return others if not unseen and 2 * len(others) < len(acts) else ()


def _is_in_a_call(rank: Rank | None) -> bool:
    return rank is not None and any(not call.is_over for call in rank.calls)


def _all_in_calls_s(
    targets: Mapping[int, TargetInfo],
    living: Collection[int],
    acts: Mapping[int, Doing],
    unseen: Collection[int],
    now: float,
) -> float:
    """For how long the recorders have seen neither a step nor a call, where the stacks of all ranks are in calls from
    before; 0 where a rank may compute, could not be seen, or has no recorder."""
    if len(living) < 2 or unseen or any(acts[rank].activity is not Activity.COLLECTIVE for rank in living):
        return 0.0
    return max(0.0, min(now - targets[rank].attached_at if targets[rank].attached_at else 0.0 for rank in living))


def _asleep_s(
    targets: Mapping[int, TargetInfo], looks: Mapping[int, Look], acts: Mapping[int, Doing], now: float
) -> float:
    """For how long no training thread has run: before its recorder came, as the kernel told, and since then, if it has
    not been seen at work. 0 where that is not known, or one may wait for somebody to give it work."""
    asleep = []
    for rank, seen in looks.items():
        thread = trains(seen.stacks) if seen.stacks is not None else None
        before_s = targets[rank].asleep.get(str(thread.tid)) if thread is not None else None
        if before_s is None or acts[rank].activity in _WAITS_FOR_WORK:
            return 0.0
        asleep.append(before_s + max(0.0, now - targets[rank].attached_at))
    return min(asleep, default=0.0)


def _is_busy(
    rank: int,
    verdict: Verdict,
    before: Mapping[int, Look],
    after: Mapping[int, Look],
    between_s: float,
    details: Mapping[int, Details],
) -> bool:
    """Return whether the rank works, or does what may take a healthy job a minute or two."""
    if rank not in before or rank not in after:
        return False
    act = verdict.doing[rank]
    if act.activity in (Activity.ENDED, Activity.STOPPED):
        return False
    # A rank that waits for its device in a loop runs as well: what it has called tells then.
    runs = act.is_running or _used(rank, before, after) >= WORKS_SHARE * between_s
    works = runs and verdict.cause in (Cause.ABSENT.value, "no progress", "init")
    waits_for_work = rank in details and details[rank].may_be_healthy
    moves = act.activity is not Activity.GIL and bool(has_moved(before[rank].stacks, after[rank].stacks))
    return act.takes_long or works or moves or waits_for_work


def _used(rank: int, before: Mapping[int, Look], after: Mapping[int, Look]) -> float:
    """CPU seconds of the rank's training thread between the looks; 0 where they are not known."""
    seen = [looks[rank].stacks if rank in looks else None for looks in (before, after)]
    first, second = (trains(stacks) if stacks is not None else None for stacks in seen)
    if first is None or second is None or first.cpu_s is None or second.cpu_s is None or first.tid != second.tid:
        return 0.0
    return second.cpu_s - first.cpu_s


def _progress(moved: list[int], before: Mapping[int, Look], after: Mapping[int, Look], between_s: float) -> Verdict:
    steps = [
        (then.step, now.step)
        for rank in moved
        if (then := before[rank]).step is not None and (now := after[rank]).step is not None and then.step != now.step
    ]
    paces = [(pace.last, pace.median) for rank in moved if (pace := after[rank].steps) is not None and pace.num > 2]
    last, usual = max(paces, default=(0.0, 0.0))
    if last > max(SLOW_STEPS * usual, usual + SLOW_S):
        how = f"slow: the last step took {seconds(last)}, usual {seconds(usual)}; compare the ranks: probe … compare"
        return Verdict(State.SLOW, how)
    if steps:
        came = f"the job has come from step {steps[0][0]} to {steps[0][1]} in {seconds(between_s)}"
        return Verdict(State.NONE, f"no hang: {came}")
    rank, then, now = moved[0], before[moved[0]], after[moved[0]]
    num, num_new = now.micro_batches or 0, (now.micro_batches or 0) - (then.micro_batches or 0)
    if now.newest_call != then.newest_call or now.worked_s is None:
        return Verdict(State.NONE, f"no hang: rank {rank} has called a collective within {seconds(between_s)}")
    how = f"has called backward {num_new} times" if num_new > 0 else "has ended a part of the step under way"
    since = f", {num} times since the last step" if num > num_new > 0 else ""
    return Verdict(State.NONE, f"no hang: rank {rank} {how} within {seconds(between_s)}{since}")


def _after_the_end(
    targets: Mapping[int, TargetInfo], looks: Mapping[int, Look], acts: Mapping[int, Doing], now: float
) -> Verdict:
    if not any(target.ended_badly for target in targets.values()):
        return Verdict(State.ENDED, "the job has ended: every rank has come to the end of its program", doing=acts)
    ended = in_order_of_end(targets.values())
    # One that exited without an error is to blame if all others lost their connection to it.
    own = [target for target in ended if not has_lost_peer(target)]
    first = next((target for target in own if target.ended_badly), (own or ended)[0])
    ranks = tuple(rank for rank, target in targets.items() if target is first)
    said = told_first(targets.values()) or [f"rank {ranks[0]} {first.ended or 'has ended, and how is not known'}"]
    said += aborted_by_gloo(ranks, targets)
    if (hung := hung_before(targets, looks, now)) is None:
        last = looks[ranks[0]].first_call if ranks[0] in looks else None
        said += [f"rank {ranks[0]} was in {last} then"] if last is not None else []
        return Verdict(State.DIED, f"the job has died: {'; '.join(said)}", ranks, "gone", doing=acts)
    stop = hung.stop
    told = f"the job has died of a hang: {'; '.join([sentence(stop, hung.ranks), *said])}"
    return Verdict(State.DIED, told, stop.ranks, stop.cause.value, (stop,), acts)


def _late(
    late: list[int],
    meets: list[int],
    targets: Mapping[int, TargetInfo],
    acts: Mapping[int, Doing],
    missing: set[int],
) -> str:
    """Return who has not come to where the others meet."""
    verb = "has" if len(late) == 1 else "have"
    others = f"rank{'s' if meets[1:] else ''} {ranks_text(meets)} wait{'' if meets[1:] else 's'}"
    said = f"rank{'s' if late[1:] else ''} {ranks_text(late)} {verb} not come to {acts[meets[0]].detail},"
    said += f" in which {others}{_store(targets, meets)}"
    unseen = missing & set(late)
    return f"{said}; nothing is known of rank{'s' if len(unseen) > 1 else ''} {ranks_text(unseen)}" if unseen else said


def _store(targets: Mapping[int, TargetInfo], ranks: list[int]) -> str:
    """Return where these ranks meet."""
    place = next((targets[rank].store for rank in ranks if targets[rank].store), "")
    return f" ({f'store {place}, ' if place else ''}world size {targets[ranks[0]].world_size})"


def _age(targets: Mapping[int, TargetInfo], ranks: list[int]) -> float:
    """Return how long the youngest of these processes has run, in seconds."""
    return min((targets[rank].age_s or 0.0 for rank in ranks), default=0.0)
