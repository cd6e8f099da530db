"""Choice of the steps that are sampled: one of each `trace.every` in a row, as few as keep within `trace.budget`.

Which one of them it is has no period, and is the same on every rank: batches that go round among ranks, a log line or
an evaluation every 10 steps would otherwise fall on every sampled step or on none.

The hooks cannot time torch's cost of calling them, so whole steps are compared, each sampled one with the few unsampled
ones right before and after it, so that slow periods and drifts affect both. Work of the job on mostly the sampled steps
is separated by controls: once sampling is lowered, the scheduled steps that were left out at random. Only a certain
cost lowers sampling, and below `MAX_UNCHECKED` only one that is certain against controls.

The measured cost of the other sources is deducted from the budget first; a tenth is always reserved for sampling.
Sampling is lowered by powers of two, at random by the step's number, so that ranks with different factors still sample
common steps. A `trace.every` set by hand is never lowered. The training thread notes steps (one append, 0.2 µs);
`review` runs on the recorder's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from ..config import Settings
from .step import Step

__all__ = ["Governor", "Verdict", "turn_of"]

#: Unsampled steps on either side that a sampled one is compared with.
NEIGHBOURS = 4
#: Fewer steps have no meaningful median; of this many the bounds are the second smallest and the second largest.
MIN_STEPS = 12
#: Quantile of the bounds of a median, which is below the lower one in 1 of 100 cases.
Z = 2.33
#: Factor by which sampling may be lowered without controls.
MAX_UNCHECKED = 4
#: Part of the budget reserved for sampling, whatever the other sources cost.
MIN_PART = 0.1
#: Sampling is raised if its cost would certainly stay below this part of the budget.
COMES_BACK = 0.8
#: Assumed cost of a module call if every step is sampled, so that there is no step to compare with.
CALL_S = 4e-6
FACTOR_BITS = 12
MAX_FACTOR = 1 << FACTOR_BITS


def turn_of(number: int, every: int, stride: int = 1) -> int | None:
    """Return the number of the turn, the `every` steps, whose scheduled step is `number` or one of the `stride` - 1
    before it, which the job's own count passes over; None if it has another one."""
    turn = number // every
    for one in (turn, turn - 1)[:stride]:
        if 0 <= number - one * every - (_scattered(one) >> FACTOR_BITS) % every < stride:
            return one
    return None


class Verdict(NamedTuple):
    """Cost of sampling: extra time of a sampled step and its uncertainty (in seconds), and the share of the run with
    its bounds."""

    extra: float
    uncertainty: float
    share: float
    low: float
    high: float
    #: Part of `low` that controls separate from the job's own work on these steps.
    certain: float


class _Turn:
    """Measurements of scheduled steps of one kind."""

    def __init__(self, num: int) -> None:
        self.sampled: deque[float] = deque(maxlen=num)
        self.controls: deque[float] = deque(maxlen=num)

    @property
    def is_checked(self) -> bool:
        return len(self.controls) >= MIN_STEPS

    def bounds(self) -> tuple[float, float, float]:
        """Return the relative extra time of sampled steps: lower bound, median, upper bound."""
        low, middle, high = _bounds(list(self.sampled))
        if not self.is_checked:
            return low, middle, high
        least, usually, most = _bounds(list(self.controls))
        return low - most, middle - usually, high - least


class Governor:
    """Decision which of the steps selected by `trace.every` are sampled."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        #: Factor that the budget demands: 1, 2, 4 …
        self._lowered = 1
        self.num_sampled = 0
        self._neighbours: deque[float] = deque(maxlen=2 * NEIGHBOURS)
        self._num_others = 0
        #: Steps that wait for later neighbours: number of unsampled steps to wait for, list to add to, duration.
        self._waiting: deque[tuple[int, deque[float], float]] = deque(maxlen=4 * NEIGHBOURS)
        #: Relative extra time of sampled steps and controls: first of usual steps, then of those of `trace.deep_every`.
        self._turns = (_Turn(100), _Turn(40))
        self._usual: deque[float] = deque(maxlen=100)  # seconds
        self._durations: deque[float] = deque(maxlen=100)  # of sampled steps
        self._calls_a_step = 0.0
        self._budget = 0.0

    @property
    def factor(self) -> int:
        """Factor by which sampling is rarer than `trace.every`."""
        return 1 if self._settings.is_by_hand("trace.every") else self._lowered

    @property
    def every(self) -> int:
        """Average distance of sampled steps; 0 for none."""
        return int(self._settings["trace.every"]) * self.factor

    def takes(self, turn: int) -> bool:
        """Return whether to sample the step of this turn."""
        return not _scattered(turn) & (self.factor - 1)

    def note(self, step: Step) -> None:
        """Note a step that has ended."""
        if not step.is_scheduled:
            self._num_others += 1
            self._neighbours.append(step.duration)
            if self._waiting and self._waiting[0][0] <= self._num_others:
                self._compare()
            return
        turn = self._turns[step.is_deep_turn]
        about = turn.controls
        if step.sampled:
            self.num_sampled += 1
            self._durations.append(step.duration)
            about = turn.sampled
        self._waiting.append((self._num_others + NEIGHBOURS, about, step.duration))

    def _compare(self) -> None:
        _, about, duration = self._waiting.popleft()
        usual = _median(self._neighbours)
        if len(self._neighbours) > NEIGHBOURS and usual > 0:
            about.append(duration / usual - 1)
            self._usual.append(usual)

    def forget(self) -> None:
        """Forget all steps: those that follow are of another kind."""
        for noted in (self._usual, self._durations, self._neighbours, self._waiting):
            noted.clear()
        for turn in self._turns:
            turn.sampled.clear()
            turn.controls.clear()

    def review(self, calls_a_step: float, others: float = 0.0) -> Verdict | None:
        """Adapt sampling to its recent cost; the other sources have cost the share `others` of the run. Return None
        while too little is known."""
        budget = float(self._settings["trace.budget"]) / 100
        self._budget = budget = max(budget - others, budget * MIN_PART)
        self._calls_a_step = calls_a_step
        verdict = self.verdict()
        if not budget:
            self._lowered = 1
        if verdict is None or not budget or self._settings.is_by_hand("trace.every"):
            return verdict
        share = verdict.share * self._lowered  # if it were sampled as set
        if verdict.low > budget:
            most = MAX_FACTOR if verdict.certain > budget else MAX_UNCHECKED
            while self._lowered < most and share / self._lowered > budget:
                self._lowered *= 2
        elif self._lowered > 1 and verdict.low * 2 <= budget * COMES_BACK:
            self._lowered //= 2
        elif self._lowered == 1:
            for turn in self._turns:
                if turn.controls:
                    turn.controls.popleft()  # no new controls come, and old ones lose their meaning
        return verdict

    def verdict(self) -> Verdict | None:
        """Return the cost of sampling; None while too little is known."""
        every = self.every
        if every == 1 and len(self._durations) >= MIN_STEPS:
            extra = self._calls_a_step * CALL_S
            share = extra / max(1e-9, _median(list(self._durations)) - extra)
            return Verdict(extra, extra / 2, share, share / 2, share * 1.5, 0.0)
        turns = [turn for turn in self._turns if len(turn.sampled) >= MIN_STEPS]
        if not every or not turns:
            return None
        low = middle = high = certain = 0.0
        total = sum(len(turn.sampled) for turn in turns)
        for turn in turns:
            part = len(turn.sampled) / total / every
            least, usually, most = turn.bounds()
            low, middle, high = low + least * part, middle + usually * part, high + most * part
            if turn.is_checked:
                certain += least * part
        usual = _median(list(self._usual)) * every
        return Verdict(middle * usual, (high - low) / 2 * usual, middle, low, high, certain)

    def explain(self) -> tuple[str, str]:
        """Return the present distance of sampled steps, and the reason."""
        every, verdict = int(self._settings["trace.every"]), self.verdict()
        costs = ""
        if verdict is not None:
            low, high = (100 * max(0.0, bound) for bound in (verdict.low, verdict.high))
            costs = f"{max(0.0, 100 * verdict.share):.2g} % of the job's time ({low:.2g} to {high:.2g})"
        if self.factor > 1:
            return str(self.every), (
                f"one step in {every} would cost more than trace.budget; one in {self.every}, at random, costs {costs}"
            )
        if not self._settings.is_by_hand("trace.every"):
            return str(every), ""
        if verdict is not None and self._budget and verdict.low > self._budget:
            return str(every), (
                f"set by hand, so it is kept; it costs {costs}, more than trace.budget leaves for it;"
                " set trace.every=default to let the budget decide"
            )
        return str(every), "set by hand, so it is kept whatever it costs"


def _scattered(number: int) -> int:
    """Return a hash of `number`, the same on every rank, without any period that a job could have."""
    number = number * 0x9E3779B1 & 0xFFFFFFFF
    number = (number ^ number >> 15) * 0x85EBCA77 & 0xFFFFFFFF
    return number ^ number >> 13


def _median(durations: Sequence[float]) -> float:
    return sorted(durations)[len(durations) // 2]


def _bounds(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median with its 1 % and 99 % bounds, for any distribution."""
    ordered, num = sorted(values), len(values)
    below = max(0, int(num / 2 - Z * sqrt(num) / 2))
    return ordered[below], ordered[num // 2], ordered[num - 1 - below]
