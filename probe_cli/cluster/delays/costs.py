"""What some ranks cost the job: seconds a step, share of its time with a confidence interval, how often, since when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Cost"]


@dataclass(frozen=True)
class Cost:
    """What the job would save if these ranks took no longer for their own work than the ranks that do the same."""

    #: Indices into `Analysis.who`, in ascending order.
    ranks: tuple[int, ...]
    #: Saved in each step, and their mean.
    per_step: np.ndarray
    seconds_a_step: float
    #: Part of the job's time, and its 95 % confidence interval.
    share: float
    low: float
    high: float
    #: In which part of the steps it costs something worth naming: 1.0 in all of them, 0.1 in every tenth.
    frequency: float
    #: It costs in every so many steps; None where it costs in most steps or without a period.
    period: int | None
    #: It costs from this step on (the job's number); None where it did from the beginning of what is known.
    since: int | None
    #: What these ranks have in common: "rank", "ranks", "host", "work" (the same calls in each step) or a coordinate
    #: such as "pp", whose value is that of `Analysis.roles`.
    kind: str = "rank"
