"""What each rank does itself in a step, phase by phase.

`forward` is measured in sampled steps only; in the others it is part of `other`. What Python waits inside collectives
is taken off: it happens in forward or other, or (FSDP) in backward, which then looks shorter than it is by no more than
that. What C++ waits is in nobody's row, and inside backward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from .facts import Facts, Step, Who

__all__ = ["EVERY_STEP", "SAMPLED_STEPS", "Phases", "differences", "own_by_step", "phases_of", "visible_waits"]

#: Phases in which nobody waits for another rank without a row that says so, as far as that can be known: those that
#: are measured in every step, and those that only sampled steps tell apart.
EVERY_STEP = ("data_wait", "forward or other", "optimizer")
SAMPLED_STEPS = ("forward", "other")


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


def visible_waits(fact: Facts) -> dict[int, float]:
    """For each step what Python waited in collectives."""
    waits: dict[int, float] = defaultdict(float)
    for call in fact.calls:
        waits[call.step] += call.wait or 0.0
    return waits


def phases_of(fact: Facts, steps: Collection[int]) -> Phases | None:
    """The phases of one rank in `steps`; None where it has none of them."""
    wanted, waits = set(steps), visible_waits(fact)
    rows = [step for step in fact.steps if step.number in wanted]
    if not rows:
        return None
    sampled = [step for step in rows if step.sampled and step.forward is not None]
    return Phases(
        duration=median(step.duration for step in rows),
        data_wait=median(step.data_wait for step in rows),
        forward=_median(step.forward for step in sampled),
        backward=_median(step.backward for step in rows),
        optimizer=median(step.optimizer for step in rows),
        other=_median(_less(step.other, waits.get(step.number, 0.0)) for step in sampled),
        rest=median(_rest(step, waits) for step in rows),
        waited=median(waits.get(step.number, 0.0) for step in rows),
    )


def own_by_step(fact: Facts, name: str = "") -> dict[int, float]:
    """For each step what the rank did itself outside backward; or the time of one of `Step`'s fields."""
    waits = visible_waits(fact)
    if name:
        return {step.number: getattr(step, name) for step in fact.steps}
    return {step.number: step.data_wait + _rest(step, waits) + step.optimizer for step in fact.steps}


def differences(values: dict[Who, dict[int, float]], steps: Sequence[int]) -> dict[Who, list[float]]:
    """For each rank and each of `steps` that it has and another one too: value less the median of the others."""
    from .standing_out import median_of_others

    found: dict[Who, list[float]] = {who: [] for who in values}
    for step in steps:
        here = {who: by_step[step] for who, by_step in values.items() if step in by_step}
        if len(here) > 1:
            others = median_of_others(here)
            for who, value in here.items():
                found[who].append(value - others[who])
    return found


def _rest(step: Step, waits: dict[int, float]) -> float:
    return _less((step.forward or 0.0) + step.other, waits.get(step.number, 0.0))


def _less(value: float, wait: float) -> float:
    return max(0.0, value - wait)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
