"""On which step can all ranks agree? Plain arithmetic on what they have said of their steps; asks nobody.

Ranks number their steps by the optimizer's count where it keeps one on the host; otherwise they count from when their
recorder came, and the same step has other numbers on other ranks. What is the same on all ranks between the same two
steps is how many collectives the groups of all ranks were given, so the numbers are compared by that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from math import ceil

from probe_agent.wire import StepMark, TicketState

__all__ = ["are_comparable", "fastest_step_s", "newest_step", "shifts", "step_after"]

#: So many steps that two ranks both have seen must tell the same.
MIN_COMMON = 2

States = Mapping[int, TicketState]


def shifts(states: States) -> dict[int, int] | None:
    """For each rank, what is added to a number of the lowest rank to get its own; None when the collectives do not
    tell (yet)."""
    if any(len(state.marks) < MIN_COMMON for state in states.values()):
        return None
    known = {rank: _by_collectives(state.marks) for rank, state in states.items()}
    if all(mark.collectives is None for state in states.values() for mark in state.marks):
        return dict.fromkeys(states, 0)  # there is nothing that the ranks do together
    first = known[min(known)]
    found: dict[int, int] = {}
    for rank, steps in known.items():
        common = first.keys() & steps.keys()
        differences = {steps[so_far] - first[so_far] for so_far in common}
        if len(common) < MIN_COMMON or len(differences) != 1:
            return None
        found[rank] = differences.pop()
    return found


def _by_collectives(marks: tuple[StepMark, ...]) -> dict[str, int]:
    """The step by the number of collectives, where one step only has that number."""
    times = Counter(mark.collectives for mark in marks)
    return {mark.collectives: mark.step for mark in marks if mark.collectives and times[mark.collectives] == 1}


def are_comparable(states: States) -> bool:
    """Whether the numbers mean the same steps by themselves."""
    return all(state.counted for state in states.values())


def fastest_step_s(states: States) -> float | None:
    """How long a short step of the fastest rank takes; None until each rank has shown one."""
    found = []
    for state in states.values():
        ends = [-mark.ago_s for mark in state.marks]
        took = sorted(end - begin for begin, end in pairwise(ends))
        if not took:
            return None
        found.append(took[len(took) // 10])
    return max(min(found), 1e-6)


def newest_step(states: States, shifted: Mapping[int, int]) -> int:
    """The newest step that has ended on any rank, in the numbers of the lowest rank."""
    return max((state.step if state.step is not None else -1) - shifted[rank] for rank, state in states.items())


def step_after(newest: int, lead_s: float, step_s: float) -> int:
    """The first step that ends no sooner than in `lead_s`: the one under way may end at once."""
    return newest + 1 + max(1, ceil(lead_s / step_s))
