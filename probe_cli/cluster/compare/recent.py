"""Collectives that C++ called a moment ago.

The recorder takes these from Flight Recorder seldom, since a look holds the GIL for up to 35 ms: rows may be 15 s late.
A question asks for what is there now, once, where the rows are behind the steps. Flight Recorder does not know steps;
when each of them ended tells.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace

from .facts import Call, Facts, Step

__all__ = ["are_late", "with_recent"]

#: Rows may be so far behind the newest step.
LATE_S = 1.0


def are_late(told: Mapping[str, Sequence[object]]) -> bool:
    """Whether the rows of C++'s collectives are behind the steps, or there are no rows at all."""
    ended = max((step.ended for step in told.get("steps", ()) if isinstance(step, Step)), default=None)
    calls = [call for call in told.get("calls", ()) if isinstance(call, Call)]
    if ended is None:
        return False
    of_cpp = [call.start for call in calls if call.by_cpp]
    return ended - max(of_cpp) > LATE_S if of_cpp else not calls


def with_recent(fact: Facts) -> Facts:
    """The same with those of `recent` that have no row yet, each in the step that it was called in."""
    known = {call.key for call in fact.calls}
    steps = sorted(fact.steps, key=lambda step: step.ended)
    ends = [step.ended for step in steps]
    found = list(fact.calls)
    for call in fact.recent:
        at = bisect_left(ends, call.start)
        # The one that is being taken now has no row: what is in it is left out.
        if call.key not in known and at < len(steps) and call.start >= ends[at] - steps[at].duration - LATE_S:
            found.append(replace(call, step=steps[at].number))
    return replace(fact, calls=tuple(found), recent=())
