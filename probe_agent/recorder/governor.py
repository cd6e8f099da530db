"""Keeps what the recorder costs the training within `trace.budget`, by this very run: sampled steps against unsampled.

The hooks cannot time what torch spends on calling them, so whole steps are compared. What the other sources have
measured of themselves comes out of the budget first; a tenth of it is always left for sampling. Sampling is lowered by
powers of two: ranks that lower it differently still sample common steps. It never goes above what the user set.
Steps are noted on the training thread (one append); `review` runs on our own thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from .config import Settings
from .step import Step

__all__ = ["Governor", "Verdict"]

#: A median of fewer says nothing.
MIN_SAMPLED, MIN_OTHERS = 5, 10
#: The part of the budget that is left for sampling, whatever else costs.
MIN_PART = 0.1
#: Where every step is sampled there is nothing to compare with; then a module call is taken to cost so much.
CALL_S = 4e-6
MAX_FACTOR = 1 << 12


class Verdict(NamedTuple):
    """What sampling costs now: what a sampled step takes longer, how uncertain that is (both in seconds), and the
    share of the whole run that is."""

    extra: float
    uncertainty: float
    share: float


class Governor:
    """Decides how many times rarer than `trace.every` steps are sampled."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        #: How many times rarer: 1, 2, 4 …
        self.factor = 1
        self.num_sampled = 0
        self._sampled: deque[float] = deque(maxlen=100)
        self._deep: deque[float] = deque(maxlen=40)
        self._others: deque[float] = deque(maxlen=2_000)

    @property
    def every(self) -> int:
        """One step in this many is sampled; 0 for none."""
        return int(self._settings["trace.every"]) * self.factor

    def note(self, step: Step) -> None:
        """A step has ended."""
        if not step.sampled:
            self._others.append(step.duration)
            return
        self.num_sampled += 1
        (self._deep if step.deep else self._sampled).append(step.duration)

    def forget(self) -> None:
        """The steps from now on are of another kind."""
        for durations in (self._sampled, self._deep, self._others):
            durations.clear()

    def review(self, calls_a_step: float, others: float = 0.0) -> Verdict | None:
        """Look at what sampling has cost of late, and adapt it; all else has cost the share `others` of the run. None
        while too little is known."""
        budget = self._settings["trace.budget"] / 100
        budget = max(budget - others, budget * MIN_PART)
        verdict = self._verdict(self.every, calls_a_step)
        if not budget:
            self.factor = 1
        if verdict is None or not budget:
            return verdict
        share_a_step = verdict.share * self.factor  # were it sampled as the user set it
        certain = verdict.extra - verdict.uncertainty > 0
        if verdict.share > budget and certain:
            while self.factor < MAX_FACTOR and share_a_step / self.factor > budget:
                self.factor *= 2
        elif self.factor > 1:
            high = share_a_step * (1 + verdict.uncertainty / verdict.extra) if verdict.extra > 0 else 0.0
            if high / (self.factor / 2) < budget:
                self.factor //= 2
        return verdict

    def _verdict(self, every: int, calls_a_step: float) -> Verdict | None:
        sampled, deep, others = list(self._sampled), list(self._deep), list(self._others)
        if not every or len(sampled) + len(deep) < MIN_SAMPLED or (every > 1 and len(others) < MIN_OTHERS):
            return None
        if every == 1:
            extra = calls_a_step * CALL_S
            return Verdict(extra, extra / 2, extra / max(1e-9, _median(sampled + deep) - extra))
        usual = _median(others)
        groups = [group for group in (sampled, deep) if group]
        total = sum(map(len, groups))
        extra = sum((_median(group) - usual) * len(group) for group in groups) / total
        uncertainty = _uncertainty(others) + sum(_uncertainty(group) * len(group) for group in groups) / total
        return Verdict(extra, uncertainty, extra / (usual * every))


def _median(durations: Sequence[float]) -> float:
    return sorted(durations)[len(durations) // 2]


def _uncertainty(durations: Sequence[float]) -> float:
    """Of the median: half the quartile range by root n."""
    ordered, num = sorted(durations), len(durations)
    quartile_range: float = ordered[num * 3 // 4] - ordered[num // 4]
    return quartile_range / 2 / sqrt(num)
