"""What each rank does itself in a step, phase by phase.

`forward` and `other` are told apart in sampled steps, in all steps they are one. What Python waits inside collectives
is taken off the phase that the call was in. What C++ waits (DDP's reducer) is in no row, and inside backward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from .facts import Call, Facts, Step, Who
from .standing_out import median_of_others

__all__ = ["EVERY_STEP", "SAMPLED_STEPS", "Phases", "differences", "own_by_step", "phases_of", "worked"]

#: Phases in which nobody waits for another rank without a row that says so, as far as that can be known: those that
#: are measured in every step, and those that only sampled steps tell apart.
EVERY_STEP = ("data_wait", "forward or other", "optimizer")
SAMPLED_STEPS = ("forward", "other")
#: A phase may have begun so much earlier than the row lets one think: there are gaps between them.
SLACK, SLACK_S = 0.1, 0.001


@dataclass(frozen=True)
class Phases:
    """Medians over the steps, in seconds; None where it was not measured."""

    duration: float
    data_wait: float
    forward: float | None
    backward: float | None
    optimizer: float
    other: float | None
    #: Forward and other together, of all steps.
    rest: float
    #: Inside the wait() of collectives that Python called.
    waited: float

    def named(self, name: str) -> float | None:
        value: float | None = self.rest if name == "forward or other" else getattr(self, name)
        return value


def worked(fact: Facts) -> list[Step]:
    """The rank's steps without what Python waited in collectives, each wait taken off the phase it was in."""
    calls: dict[int, list[Call]] = defaultdict(list)
    for call in fact.calls:
        if call.wait:
            calls[call.step].append(call)
    return [_worked(step, calls[step.number]) if step.number in calls else step for step in fact.steps]


def _worked(step: Step, calls: Sequence[Call]) -> Step:
    # Backward comes right before the optimizer, and forward before it, as far as a row can tell.
    backward, forward = step.backward or 0.0, step.forward or 0.0
    backward_from = step.ended - step.optimizer - backward * (1 + SLACK) - SLACK_S
    forward_from = backward_from - forward * (1 + SLACK)
    waits = {"backward": 0.0, "forward": 0.0, "other": 0.0}
    for call in calls:
        if backward and call.start >= backward_from:
            where = "backward"
        else:
            where = "forward" if forward and call.start >= forward_from else "other"
        waits[where] += call.wait or 0.0
    return replace(
        step,
        forward=_less(step.forward, waits["forward"]),
        backward=_less(step.backward, waits["backward"]),
        other=max(0.0, step.other - waits["other"]),
    )


def phases_of(fact: Facts, steps: Collection[int]) -> Phases | None:
    """The phases of one rank in `steps`; None where it has none of them."""
    wanted = set(steps)
    rows = [step for step in worked(fact) if step.number in wanted]
    if not rows:
        return None
    waits: dict[int, float] = defaultdict(float)
    for call in fact.calls:
        waits[call.step] += call.wait or 0.0
    sampled = [step for step in rows if step.sampled and step.forward is not None]
    return Phases(
        duration=median(step.duration for step in rows),
        data_wait=median(step.data_wait for step in rows),
        forward=_median(step.forward for step in sampled),
        backward=_median(step.backward for step in rows),
        optimizer=median(step.optimizer for step in rows),
        other=_median(step.other for step in sampled),
        rest=median(_rest(step) for step in rows),
        waited=median(waits[step.number] for step in rows),
    )


def own_by_step(fact: Facts, name: str = "") -> dict[int, float]:
    """For each step what the rank did itself outside backward; or the time of one of `Step`'s fields."""
    if name:
        return {step.number: getattr(step, name) for step in fact.steps}
    return {step.number: step.data_wait + _rest(step) + step.optimizer for step in worked(fact)}


def differences(values: dict[Who, dict[int, float]], steps: Sequence[int]) -> dict[Who, list[float]]:
    """For each rank and each of `steps` that it has and another one too: value less the median of the others."""
    found: dict[Who, list[float]] = {who: [] for who in values}
    for step in steps:
        here = {who: by_step[step] for who, by_step in values.items() if step in by_step}
        if len(here) > 1:
            others = median_of_others(here)
            for who, value in here.items():
                found[who].append(value - others[who])
    return found


def _rest(step: Step) -> float:
    return (step.forward or 0.0) + step.other


def _less(value: float | None, wait: float) -> float | None:
    return None if value is None else max(0.0, value - wait)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
