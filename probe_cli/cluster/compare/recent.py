"""Collectives that C++ called a moment ago.

The recorder takes these from Flight Recorder seldom, since a look holds the GIL for up to 35 ms: rows may be 15 s late.
A question asks for what is there now, once, where the rows are behind the steps. Flight Recorder does not know steps;
when each of them ended tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .facts import Columns, Facts

__all__ = ["are_late", "with_recent"]

#: Rows may be so far behind the newest step.
LATE_S = 1.0


def are_late(told: Mapping[str, Any]) -> bool:
    """Whether the rows of C++'s collectives are behind the steps, or there are no rows at all."""
    steps, calls = told.get("steps"), told.get("calls")
    if not steps:
        return False
    if not calls:
        return True
    starts = calls["start"][calls["by_cpp"]]
    return bool(len(starts) and steps["ended"].max() - starts.max() > LATE_S)


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
