"""When a difference between ranks is more than noise.

Each rank has one number a step: by how much it differs from the median of the other ranks in that step. It stands out
when three things come together: the median of its numbers is a tenth of the step or more; it is there in most steps;
and it is a multiple of what the other ranks scatter from step to step (median absolute deviation). On a noisy machine
the first is often true of somebody in some step, all three for one rank only when it really is different.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

__all__ = [
    "MIN_S",
    "MIN_SCORE",
    "MIN_SHARE",
    "MIN_STEPS",
    "QUIET",
    "SIGMA",
    "Standing",
    "mad",
    "median_of_others",
    "standings",
    "those_that_stand_out",
]

K = TypeVar("K", bound=Hashable)

#: Fewer steps in common than this, and nothing is said.
MIN_STEPS = 10
#: The least part of a step, and the least time, that is worth a name.
MIN_SHARE = 0.10
MIN_S = 0.0005
#: In so many of the steps half of that must be there; of few steps in nearly all.
MOST, NEARLY_ALL, FEW_STEPS = 0.80, 0.90, 20
MIN_SCORE = 4.0
#: Scatter is taken to be at least this part of the step: on a quiet machine a score would have no bound.
QUIET = 0.01
#: Of a normal distribution, the standard deviation is this many times the median absolute deviation.
SIGMA = 1.4826


@dataclass(frozen=True)
class Standing(Generic[K]):
    """How one rank differs from the others."""

    key: K
    #: Median over the steps of the difference to the median of the others, in seconds.
    effect: float
    share: float
    #: In which part of the steps at least half of what would count is there.
    frequency: float
    score: float
    num_steps: int

    @property
    def stands_out(self) -> bool:
        needed = MOST if self.num_steps >= FEW_STEPS else NEARLY_ALL
        return (
            self.num_steps >= MIN_STEPS
            and self.share >= MIN_SHARE
            and self.effect >= MIN_S
            and self.frequency >= needed
            and self.score >= MIN_SCORE
        )


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


def standings(differences: Mapping[K, Sequence[float]], step_s: float) -> list[Standing[K]]:
    """How each key stands, the most different first. `differences` has one number a step, `step_s` is a step."""
    scatter = {key: mad(values) for key, values in differences.items()}
    noise = median_of_others(scatter) if len(scatter) > 1 else dict.fromkeys(scatter, 0.0)
    if len(scatter) == 2:  # the difference of two is what both scatter, not one
        noise = {key: value / 2**0.5 for key, value in noise.items()}
    found = []
    for key, values in differences.items():
        if not values:
            continue
        effect = median(values)
        enough = max(MIN_S, MIN_SHARE * step_s) / 2
        found.append(
            Standing(
                key=key,
                effect=effect,
                share=effect / step_s if step_s > 0 else 0.0,
                frequency=sum(value >= enough for value in values) / len(values),
                score=effect / max(SIGMA * noise[key], QUIET * step_s, 1e-9),
                num_steps=len(values),
            )
        )
    return sorted(found, key=lambda standing: -standing.effect)


def those_that_stand_out(found: Sequence[Standing[K]]) -> list[Standing[K]]:
    """Those to be named, the most different first."""
    return [standing for standing in found if standing.stands_out]
