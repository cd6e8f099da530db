"""When a rank's module or memory differs from that of the others by more than they scatter."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from statistics import median
from typing import TypeVar

__all__ = ["MIN_S", "MIN_SCORE", "MIN_SHARE", "QUIET", "SIGMA", "mad", "median_of_others"]

K = TypeVar("K", bound=Hashable)

#: The least part of a step, and the least time, that is worth a name.
MIN_SHARE = 0.10
MIN_S = 0.0005
MIN_SCORE = 4.0
#: Scatter is taken to be at least this part of the step: on a quiet machine a score would have no bound.
QUIET = 0.01
#: Of a normal distribution, the standard deviation is this many times the median absolute deviation.
SIGMA = 1.4826


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation from the median; 0 of nothing."""
    if not values:
        return 0.0
    middle = median(values)
    return median(abs(value - middle) for value in values)


def median_of_others(values: Mapping[K, float]) -> dict[K, float]:
    """For each key the median of the values of all other keys; needs two at least."""
    order = sorted(values, key=lambda key: values[key])
    last = len(order) - 2  # of those that are left when one is out
    found = {}
    for at, key in enumerate(order):
        low, high = last // 2, (last + 1) // 2
        found[key] = (values[order[low + (low >= at)]] + values[order[high + (high >= at)]]) / 2
    return found
