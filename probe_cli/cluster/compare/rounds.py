"""Rounds: what lies between two meetings of all ranks, where the ranks take different numbers of steps meanwhile.

Federated clients and local SGD over shards of different size end more steps on one rank than on another between two
averages, so step 300 of one is long before step 300 of another. What they have in common is where they meet: the calls
of a group of all ranks. Such facts are compared by rounds, in place of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from probe_cli.cluster.delays.rows import STEPS

from .facts import Facts

__all__ = ["in_rounds"]

#: By how many steps, and by which part of them, ranks differ in the same time where each takes as many as it has data.
DIFFER_STEPS, DIFFER = 5, 0.05
_PHASES = ("data_wait", "forward", "backward", "optimizer", "evaluation", "generation")


def in_rounds(facts: Sequence[Facts], enough: int) -> list[Facts]:
    """The same facts with rounds for steps, if the ranks take different numbers of steps in the same time and meet at
    least `enough` times; else as they are."""
    if len(facts) < 2 or not all(fact.steps and fact.calls for fact in facts) or not _differ(facts):
        return list(facts)
    meetings = _meetings(facts)
    if not meetings.size:
        return list(facts)
    ended = [np.searchsorted(np.sort(fact.steps["ended"]), own) for fact, own in zip(facts, meetings, strict=True)]
    # The last of several meetings between which no rank has ended a step.
    is_last = np.append((np.diff(np.array(ended), axis=1) > 0).any(axis=0), True)
    if is_last.sum() <= enough:
        return list(facts)
    return [_by_rounds(fact, own[is_last]) for fact, own in zip(facts, meetings, strict=True)]


def _differ(facts: Sequence[Facts]) -> bool:
    first = max(float(fact.steps["ended"].min()) - fact.offset for fact in facts)
    last = min(float(fact.steps["ended"].max()) - fact.offset for fact in facts)
    within = [
        int(
            np.count_nonzero((fact.steps["ended"] - fact.offset >= first) & (fact.steps["ended"] - fact.offset <= last))
        )
        for fact in facts
    ]
    return max(within) - min(within) > max(DIFFER_STEPS, DIFFER * max(within))


def _meetings(facts: Sequence[Facts]) -> np.ndarray:
    """When each rank left each of the collectives that all ranks have called, in their order (R x M)."""
    left: list[dict[tuple[str, int], float]] = []
    for fact in facts:
        calls = fact.calls
        is_met = (calls["peer"] < 0) & ~calls["is_open"]
        keys = zip(calls["group"][is_met].tolist(), calls["seq"][is_met].tolist(), strict=True)
        left.append(dict(zip(keys, calls["ended"][is_met].tolist(), strict=True)))
    common = set.intersection(*map(set, left))
    order = sorted(common, key=left[0].__getitem__)
    found = np.array([[own[key] for key in order] for own in left], dtype=float).reshape(len(facts), len(order))
    return np.maximum.accumulate(found, axis=1) if found.size else found


def _by_rounds(fact: Facts, bounds: np.ndarray) -> Facts:
    num = len(bounds) - 1
    at = np.searchsorted(bounds, fact.steps["ended"]) - 1  # -1 before the first round, `num` after the last
    inside = (at >= 0) & (at < num)

    def of_rounds(name: str) -> np.ndarray:
        return np.bincount(at[inside], np.nan_to_num(np.asarray(fact.steps[name], float))[inside], num)

    steps = {name: of_rounds(name) for name in (*_PHASES, "sampled", "traced") if name in fact.steps}
    lasted = np.diff(bounds)
    known = np.sum([steps[name] for name in _PHASES if name in steps], axis=0)
    steps |= {
        "number": np.arange(num),
        "ended": bounds[1:],
        "duration": lasted,
        "other": np.maximum(lasted - known, 0.0),
    }
    steps |= {name: steps[name] > 0 for name in ("sampled", "traced") if name in steps}
    assert set(STEPS) <= set(steps)
    met = np.searchsorted(bounds, fact.calls["ended"]) - 1
    keep = (met >= 0) & (met < num)
    calls = {name: values[keep] for name, values in {**fact.calls, "step": met}.items()}
    return replace(fact, steps=steps, calls=calls)
