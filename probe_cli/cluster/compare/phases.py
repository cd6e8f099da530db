"""What each rank does itself in a step, phase by phase.

What a rank stood still in collectives is taken off the phase that it did so in. A wait inside a call that C++ made
(DDP's reducer, inside backward) is in no row: the analysis knows how long the rank stood still altogether.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .facts import Facts

__all__ = ["PHASES", "Longer", "longer", "own_phases"]

#: In the order of a step. The recorder calls the first one of a call `data`.
PHASES = ("data_wait", "forward", "backward", "optimizer", "evaluation", "generation", "other")
_OF_CALLS = {"data": "data_wait"}
#: The phase of a call that C++ made, where no row says it: the reducer's.
_OF_CPP = "backward"
#: One phase is named when it has this part of all that is longer. All of them are, when those that usually take nearly
#: all of a step are longer by such a part.
MOST, NEARLY_ALL, ALL_LONGER = 0.6, 0.8, 1.15
#: A phase must have this part of what the rank costs.
ENOUGH = 0.25

Times = np.ndarray  # one number a step


@dataclass(frozen=True)
class Longer:
    """In what a rank takes longer than its peers, in the steps that it is costly in."""

    #: One of PHASES, "forward or other", "all phases"; None where nothing is longer by enough.
    phase: str | None
    #: Seconds a step, in these steps: its own, and the median of its peers'.
    value: float | None = None
    usual: float | None = None
    #: In which part of the steps they do.
    often: float = 0.0


def own_phases(fact: Facts, numbers: np.ndarray, stood_still: Times) -> dict[str, Times]:
    """For each phase the rank's own time in each of the steps `numbers`, NaN where it is not known. `stood_still` is
    how long it did in each of these steps, in all phases together."""
    steps = fact.steps
    found = {name: np.full(len(numbers), np.nan) for name in PHASES}
    if not steps or not len(numbers):
        return found
    order = np.argsort(steps["number"], kind="stable")
    at = np.minimum(np.searchsorted(steps["number"][order], numbers), len(order) - 1)
    is_there = steps["number"][order][at] == numbers
    for name in PHASES:
        found[name][is_there] = steps[name][order][at][is_there].astype(float)
    waits = _waits(fact, numbers, stood_still)
    for name, wait in waits.items():
        found[name] = np.maximum(0.0, found[name] - wait)
    return found


def _waits(fact: Facts, numbers: np.ndarray, stood_still: Times) -> dict[str, Times]:
    """What is to be taken off each phase, in each step."""
    calls = fact.calls
    found: dict[str, Times] = {}
    if not calls:
        return found
    at = np.searchsorted(numbers, calls["step"])
    at_end = np.minimum(at, len(numbers) - 1)
    is_in = numbers[at_end] == calls["step"]
    names = np.array([_OF_CALLS.get(name, name) for name in calls["wait_phase"].tolist()], dtype=object)
    wait = calls["wait"].astype(float)
    is_told = is_in & ~np.isnan(wait) & ~calls["by_cpp"].astype(bool) & ~calls["on_device"].astype(bool)
    unplaced = np.zeros(len(numbers))
    for name in set(names[is_told]):
        told = is_told & (names == name)
        sums = np.bincount(at_end[told], weights=wait[told], minlength=len(numbers))
        if name in PHASES:
            found[name] = sums
        else:
            unplaced += sums
    # What is left was stood still in calls that do not tell how long.
    silent = is_in & ~is_told
    counts: dict[str, Times] = {}
    for name in set(names[silent]):
        where = name if name in PHASES else _OF_CPP
        counted = np.bincount(at_end[silent & (names == name)], minlength=len(numbers)).astype(float)
        counts[where] = counts.get(where, 0.0) + counted
    left = np.maximum(0.0, stood_still - sum(found.values(), np.zeros(len(numbers))))
    total = sum(counts.values(), np.zeros(len(numbers)))
    for name, counted in counts.items():
        part = np.divide(counted, total, out=np.zeros(len(numbers)), where=total > 0)
        found[name] = found.get(name, 0.0) + part * left
    if unplaced.any() and not counts:  # an older recorder, which does not tell the phase of a call
        found["other"] = found.get("other", 0.0) + unplaced
    return found


def longer(
    own: Mapping[int, dict[str, Times]],
    ranks: Collection[int],
    peers: Collection[int],
    late: np.ndarray,
    cost_s: float,
) -> Longer:
    """In what `ranks` take longer than `peers` (keys of `own`) in the steps in which they are `late`; `cost_s` is what
    they cost for each of these."""
    if not ranks or not peers or not late.any():
        return Longer(None)
    mine: dict[str, float] = {}
    usual: dict[str, float] = {}
    for name in _told(own, (*ranks, *peers)):
        both = (name,) if name != "forward or other" else ("forward", "other")
        mine[name] = _mean(own, ranks, both, late)
        usual[name] = _mean(own, peers, both, late)
    extra = {name: mine[name] - usual[name] for name in mine}
    more = sum(value for value in extra.values() if value > 0)
    if not extra or more < ENOUGH * cost_s or more <= 0:
        return Longer(None)
    top = max(extra, key=lambda name: extra[name])
    whole = sum(usual.values())
    lengthened = [name for name in mine if mine[name] >= ALL_LONGER * usual[name]]
    is_most = sum(usual[name] for name in lengthened) >= NEARLY_ALL * whole
    if extra[top] < MOST * more and len(lengthened) > 1 and is_most:
        return Longer("all phases", sum(mine.values()), whole, float(late.mean()))
    if extra[top] < ENOUGH * cost_s:
        return Longer(None)
    return Longer(top, mine[top], usual[top], float(late.mean()))


def _told(own: Mapping[int, dict[str, Times]], ranks: Collection[int]) -> list[str]:
    """The phases that are known of these ranks: where one cannot be told from the rest, both together."""
    names = [name for name in PHASES if all(np.isfinite(own[rank][name]).mean() > 0.5 for rank in ranks)]
    if "forward" not in names and "other" in names:
        names[names.index("other")] = "forward or other"
    return names


def _mean(own: Mapping[int, dict[str, Times]], ranks: Collection[int], names: Sequence[str], late: np.ndarray) -> float:
    """The mean over the steps of the median of the ranks: what happens now and then counts as well."""
    by_rank = np.array([sum(np.nan_to_num(own[rank][name][late]) for name in names) for rank in ranks])
    return float(np.median(by_rank, axis=0).mean())
