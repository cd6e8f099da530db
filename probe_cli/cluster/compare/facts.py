"""Facts: what one rank has told, on one clock for all hosts, each collective in its step.

Times are in seconds since 1970, memory in MiB.

The hosts' clocks, by Cristian's algorithm: a host server says when a question came in and when its answer went out, by
its own clock. Whatever the network did, the question came in after it was sent and the answer left before it arrived:
so the offset is known to within half of the round trip less the time spent there. Of several trips the shortest is
taken. Ranks of one host share a clock, so between them there is no uncertainty at all.

Collectives that C++ called a moment ago: the recorder takes these from Flight Recorder seldom, since a look holds the
GIL for up to 35 ms, and rows may be 15 s late. So a rank is asked for what is there now, once, where the rows are
behind the steps. Flight Recorder does not know steps; when each of them ended tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from probe_cli.cluster.delays.rows import STEPS, Who
from probe_cli.cluster.hang.standstill import is_long

__all__ = [
    "NUM_TRIPS",
    "Clock",
    "Columns",
    "Facts",
    "Group",
    "Memory",
    "ModuleTime",
    "Trait",
    "Trip",
    "Who",
    "are_late",
    "clock_of",
    "of_host",
    "one_clock_a_host",
    "standstill_s",
    "uncertainty_between",
    "with_borrowed_steps",
    "with_recent",
]

#: Round trips to each host server: the shortest of a few is near the shortest there is.
NUM_TRIPS = 6
#: Steps that differ by this factor on two ranks are different things.
OTHER_STEPS = 1.5
#: Rows may be so far behind the newest step.
LATE_S = 1.0
#: A table by columns of equal length; empty where it was not asked, or has no rows.
Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class ModuleTime:
    """What a module took in sampled steps: median, 30 % quantile and median absolute deviation over these steps.

    `host` is the time of its own code, without the modules below it; `device` is with them, None on a CPU.
    """

    module: str
    stage: str
    num_steps: int
    host: float
    host_low: float
    host_scatter: float
    device: float | None
    device_low: float | None
    device_scatter: float | None


@dataclass(frozen=True)
class Memory:
    """The memory of a rank over its newest steps."""

    name: str
    median: float
    first: float
    last: float
    num_steps: int


@dataclass(frozen=True)
class Group:
    """A process group: what its maker calls it, and its ranks in the job; empty where not known."""

    desc: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Trait:
    """A setting, a version, a variable or the hash of a file."""

    kind: str
    name: str
    value: str | None


@dataclass(frozen=True)
class Clock:
    """A host's clock against ours: `offset` is to be taken off its times; right to within `uncertainty`."""

    offset: float
    uncertainty: float
    num_trips: int = 0


@dataclass(frozen=True)
class Facts:
    """All that one rank has told; what was not asked, or not answered, is empty."""

    who: Who
    #: Rows of `python.steps`, by step.
    steps: Columns = field(default_factory=dict)
    #: Rows of `python.collectives`, by start.
    calls: Columns = field(default_factory=dict)
    #: Calls of C++ that Flight Recorder has now; their step is not known.
    recent: Columns = field(default_factory=dict)
    #: By the name that `calls` have.
    groups: Mapping[str, Group] = field(default_factory=dict)
    modules: tuple[ModuleTime, ...] = ()
    memory: tuple[Memory, ...] = ()
    traits: tuple[Trait, ...] = ()
    #: Rows of `process.samples`, by time.
    samples: Columns = field(default_factory=dict)
    #: Rows of `python.gc`, by time.
    pauses: Columns = field(default_factory=dict)
    #: MHz of its GPU's processors while it worked, None without one.
    gpu_clock: float | None = None
    clock: Clock | None = None
    #: What the rank is in its job, where that is known: {"dp": 1, "tp": 0, "pp": 3}.
    roles: Mapping[str, int] = field(default_factory=dict)
    #: What it could not tell, and why.
    gaps: tuple[str, ...] = ()

    @property
    def offset(self) -> float:
        """Seconds to be taken off its host's times to be on our clock; 0 where that is not known."""
        return 0.0 if self.clock is None else self.clock.offset


def of_host(who: Who, facts: Sequence[Facts]) -> str:
    """` (on node2)`, where there are several hosts."""
    return f" (on {who.host})" if len({fact.who.host for fact in facts}) > 1 else ""


@dataclass(frozen=True)
class Trip:
    """One round trip: `sent` and `got` by our clock, `received` and `answered` by the host's."""

    sent: float
    received: float
    answered: float
    got: float

    @property
    def uncertainty(self) -> float:
        return max(0.0, (self.got - self.sent) - (self.answered - self.received)) / 2

    @property
    def offset(self) -> float:
        return ((self.received - self.sent) + (self.answered - self.got)) / 2


def clock_of(trips: Sequence[Trip]) -> Clock | None:
    """The host's clock against ours by the best of `trips`; None of none."""
    if not trips:
        return None
    best = min(trips, key=lambda trip: trip.uncertainty)
    return Clock(best.offset, best.uncertainty, len(trips))


def one_clock_a_host(facts: Iterable[Facts]) -> list[Facts]:
    """The same facts, with all ranks of a host on the clock that is known best of those measured there."""
    facts = list(facts)
    best: dict[str, Clock] = {}
    for fact in facts:
        known = best.get(fact.who.host)
        if fact.clock is not None and (known is None or fact.clock.uncertainty < known.uncertainty):
            best[fact.who.host] = fact.clock
    return [replace(fact, clock=best.get(fact.who.host)) for fact in facts]


def uncertainty_between(facts: Sequence[Facts]) -> float | None:
    """By how much times of different hosts may be wrong against each other at most; None where that is not known."""
    clocks = {fact.who.host: fact.clock for fact in facts}
    if len(clocks) < 2:
        return 0.0
    known = sorted(clock.uncertainty for clock in clocks.values() if clock is not None)
    return known[-1] + known[-2] if len(known) == len(clocks) else None


def are_late(told: Mapping[str, Any]) -> bool:
    """Whether the rows of C++'s collectives are behind the steps, or there are no rows at all."""
    steps, calls = told.get("steps"), told.get("calls")
    if not steps:
        return False
    if not calls:
        return True
    starts = calls["start"][calls["by_cpp"]]
    return bool(len(starts) and steps["ended"].max() - starts.max() > LATE_S)


def with_borrowed_steps(facts: Sequence[Facts], enough: int) -> list[Facts]:
    """The same, where a rank that calls others but ends no steps has those of the rank that has recorded most of them:
    a parameter server that updates without an optimizer, say. So has an actor beside a learner, whose recorder takes
    each call of the policy for a step. What they do in them is not known by phases."""
    with_steps = [fact for fact in facts if fact.steps]
    training = [fact for fact in with_steps if _trains(fact)]
    most = max(training or with_steps, key=lambda fact: len(fact.steps["number"]), default=None)
    if most is None or len(most.steps["number"]) < enough:
        return list(facts)

    def has_none(fact: Facts) -> bool:
        if not fact.steps or not training or _trains(fact):
            return not fact.steps
        return _ends_others(fact, most) or _calls_between(fact)

    return [_borrowing(fact, most) if fact.calls and has_none(fact) else fact for fact in facts]


def _trains(fact: Facts) -> bool:
    return any(bool(np.nan_to_num(fact.steps[name]).any()) for name in ("backward", "optimizer"))


def _ends_others(fact: Facts, most: Facts) -> bool:
    """Return whether its steps are not those of the rank `most`: they are that much shorter, or longer."""
    ratio = float(np.mean(fact.steps["duration"]) / max(float(np.mean(most.steps["duration"])), 1e-9))
    return not 1 / OTHER_STEPS < ratio < OTHER_STEPS


def _calls_between(fact: Facts) -> bool:
    """Return whether most of its calls are in no step of its own: its recorder began to see steps long after them."""
    return bool(fact.calls) and float(np.mean(fact.calls["step"] < 0)) > 0.5


def _borrowing(fact: Facts, most: Facts) -> Facts:
    by = np.argsort(most.steps["ended"], kind="stable")
    steps: dict[str, np.ndarray] = {name: np.zeros(len(by)) for name in STEPS}
    steps |= {name: most.steps[name][by] for name in ("number", "duration")}
    steps |= {"ended": most.steps["ended"][by] - most.offset + fact.offset, "other": steps["duration"]}
    steps["sampled"] = np.zeros(len(by), dtype=bool)
    # A server waits for the next gradient before the step that it comes in has begun.
    at = np.searchsorted(steps["ended"], fact.calls["ended"])
    is_in = (at < len(by)) & (fact.calls["ended"] >= steps["ended"][0] - steps["duration"][0])
    calls = {name: values[is_in] for name, values in fact.calls.items()}
    calls["step"] = steps["number"][at[is_in]]
    return replace(fact, steps=steps, calls=calls if is_in.any() else {})


def with_recent(fact: Facts) -> Facts:
    """The same with those of `recent` that have no row yet, each in the step that it was called in."""
    recent, steps = fact.recent, fact.steps
    if not recent or not steps:
        return replace(fact, recent={})
    known = _keys(fact.calls)
    by = np.argsort(steps["ended"], kind="stable")
    ends, numbers = steps["ended"][by], steps["number"][by]
    begins = ends - steps["duration"][by]
    at = np.searchsorted(ends, recent["start"])
    # The step that is being taken now has no row: what is in it is left out.
    is_in = at < len(ends)
    at = np.minimum(at, len(ends) - 1)
    is_in &= recent["start"] >= begins[at] - LATE_S
    is_in &= np.array([key not in known for key in _keys_in_order(recent)], dtype=bool)
    late = {name: values[is_in] for name, values in {**recent, "step": numbers[at]}.items()}
    calls = {name: np.concatenate([fact.calls[name], late[name]]) for name in late} if fact.calls else late
    order = np.argsort(calls["start"], kind="stable")
    return replace(fact, calls={name: values[order] for name, values in calls.items()}, recent={})


def _keys(calls: Columns) -> set[tuple[str, int]]:
    return set(_keys_in_order(calls))


def _keys_in_order(calls: Columns) -> list[tuple[str, int]]:
    return list(zip(calls["group"].tolist(), calls["seq"].tolist(), strict=True)) if calls else []


def standstill_s(facts: Sequence[Facts], now: float) -> float | None:
    """For how long no rank has ended a step, if that is long; `now` is by our clock, in seconds since 1970."""
    ended, durations = [], []
    for fact in facts:
        if fact.steps:
            ended.append(float(fact.steps["ended"].max()) - fact.offset)
            durations.append(fact.steps["duration"])
    if not ended:
        return None
    age = now - max(ended)
    usual = median(float(median(values.tolist())) for values in durations)
    longest = max(float(values.max()) for values in durations)
    return age if is_long(age, usual, longest) else None
