"""For how long no rank of a job has got on, and whether that is long for this job."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from probe_cli.text import seconds

from .looks import Look

__all__ = ["LONG_S", "LONG_START_S", "is_early", "is_long", "not_long", "standstill", "usual"]

#: No step for so long, for so many steps' time, and for so many times the longest known.
LONG_S, LONG_STEPS, LONGEST = 10.0, 10.0, 2.0
#: With so few collectives the usual time between them is not known, nor without any step.
FEW_CALLS, LONG_START_S = 10, 300.0


def standstill(looks: Mapping[int, Look], ago_s: float = 0.0) -> tuple[float | None, bool]:
    """For how long no rank has got on, or had so many seconds ago, and whether that is long for this job; None where
    nothing tells."""
    paces = [seen.steps for seen in looks.values() if seen.steps is not None]
    ages = [seen.newest_call_age for seen in looks.values() if seen.newest_call_age is not None]
    if paces:
        age = max(0.0, min([*ages, *(pace.age for pace in paces)]) - ago_s)
        return age, is_long(age, usual(looks), max(pace.longest for pace in paces))
    calls = [seen.calls for seen in looks.values() if seen.calls is not None]
    ages += [pace.age for pace in calls]
    if not ages:
        return None, False
    age = max(0.0, min(ages) - ago_s)
    if is_early(looks):
        return age, age >= LONG_START_S
    return age, is_long(age, 0.0, max(pace.longest for pace in calls))


def is_long(age: float, usual: float, longest: float) -> bool:
    """Whether `age` seconds without a step are long for a job whose steps take so long in the median, and at most."""
    return age >= max(LONG_S, LONG_STEPS * usual, LONGEST * longest)


def is_early(looks: Mapping[int, Look]) -> bool:
    """Return whether the job has ended no step, and has called too little for its usual time to be known."""
    has_stepped = any(seen.steps is not None for seen in looks.values())
    return not has_stepped and max((seen.calls.num for seen in looks.values() if seen.calls), default=0) < FEW_CALLS


def usual(looks: Mapping[int, Look]) -> float:
    """How long a step of the job takes, in seconds; 0 where no rank has ended one."""
    medians = [seen.steps.median for seen in looks.values() if seen.steps is not None]
    return median(medians) if medians else 0.0


def not_long(looks: Mapping[int, Look]) -> str:
    """What steps of this job take, for a standstill that is not long for it."""
    longest = max((seen.steps.longest for seen in looks.values() if seen.steps is not None), default=None)
    if longest is None:
        return "not long for this job"
    return f"not long for this job, whose steps take {seconds(usual(looks))} and have taken {seconds(longest)}"
