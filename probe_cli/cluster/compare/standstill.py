"""Whether the steps that are compared are of now: a job that hangs, or has ended, still has rows."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from .facts import Facts
from .words import seconds

__all__ = ["standstill"]

#: No step for so long, and for so many steps' time, is worth a remark.
LONG_S, LONG_STEPS = 10.0, 10.0


def standstill(facts: Sequence[Facts], now: float) -> str | None:
    """A remark when no rank has ended a step for long; `now` is by our clock, in seconds since 1970."""
    ended = []
    durations = []
    for fact in facts:
        if fact.steps:
            newest = max(fact.steps, key=lambda step: step.ended)
            ended.append(newest.ended - (fact.clock.offset if fact.clock is not None else 0.0))
            durations.append(median(step.duration for step in fact.steps))
    if not ended:
        return None
    age = now - max(ended)
    if age < max(LONG_S, LONG_STEPS * median(durations)):
        return None
    return f"no rank has ended a step for {seconds(age)}: does the job hang, or has it ended? This is as it was then"
