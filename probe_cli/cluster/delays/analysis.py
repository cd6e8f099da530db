"""Delay analysis of a job, from the rows of its ranks to what each of them costs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from probe_cli.cluster.compare.facts import Who

from .charges import Charge
from .costs import Cost

__all__ = ["Analysis"]


@dataclass(frozen=True)
class Analysis:
    """What the steps that all ranks cover say. R ranks, K steps; without common steps K is 0 and all else empty."""

    who: tuple[Who, ...]
    #: The job's numbers of the steps, and how long each took.
    steps: np.ndarray
    lengths: np.ndarray
    #: What each rank did itself, stood still for others, and stood still for data on their way, in each step (R x K).
    own: np.ndarray
    waited: np.ndarray
    transfer: np.ndarray
    #: Rank-seconds that other ranks stood still for this rank, by the step in which they did (R x K).
    charged: np.ndarray
    #: The biggest first.
    charges: Sequence[Charge]
    #: Rank-seconds of waits that are charged to nobody: shorter than the clocks are known, or without a known cause.
    unknown_s: float
    #: Part of the calls in these steps that are known of all their ranks.
    covered: float
    #: The smallest share of the time that would have been told from noise in this job.
    smallest_visible: float
    #: What is worth a look, the best explanation first: sets of ranks, none of which is explained by a part of it.
    candidates: Sequence[Cost]

    @property
    def step_s(self) -> float:
        """How long a step takes: the median."""
        return float(np.median(self.lengths)) if len(self.lengths) else 0.0

    @property
    def time_s(self) -> float:
        """How long all of the steps took."""
        return float(self.lengths.sum())

    def cost_of(self, ranks: Collection[int]) -> Cost:
        """What these ranks (indices into `who`) cost together."""
        raise NotImplementedError

    def total(self) -> Cost:
        """What all differences between ranks that do the same work cost together, whoever has them."""
        raise NotImplementedError
