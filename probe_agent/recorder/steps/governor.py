"""Keeps what the recorder costs the training within `trace.budget`, by this very run: sampled steps against unsampled.

The hooks cannot time what torch spends on calling them, so whole steps are compared, each sampled one with the few
unsampled ones right before and after it: what makes a while of the run slow, or the run slower and slower, is in both.
What a job does on the very steps that are sampled (a log line every 20) is told from our cost by controls: as soon as
sampling is lowered, the steps that are left out, by chance, of those that were to be sampled. Only a cost that is
certain lowers it, below `MAX_UNCHECKED` only one that is certain beside controls.

What the other sources have measured of themselves comes out of the budget first; a tenth of it is always left for
sampling. Sampling is lowered by powers of two, and the chance is the step's number: ranks that lower it differently
still sample common steps. A `trace.every` that somebody has set by hand is never lowered. Steps are noted on the
training thread (one append, 0.2 µs); `review` runs on our own thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from ..config import Settings
from .step import Step

__all__ = ["Governor", "Verdict"]

#: Unsampled steps on either side that a sampled one is compared with.
NEIGHBOURS = 4
#: A median of fewer says nothing; of this many the bounds are the smallest and the largest but one.
MIN_STEPS = 12
#: Of the bounds of a median: it is below the lower one once in a hundred.
Z = 2.33
#: How many times rarer steps may be sampled before controls have said whose the cost is.
MAX_UNCHECKED = 4
#: The part of the budget that is left for sampling, whatever else costs.
MIN_PART = 0.1
#: Sampling comes back when its cost would not be more than this part of the budget for certain.
COMES_BACK = 0.8
#: Where every step is sampled there is nothing to compare with; then a module call is taken to cost so much.
CALL_S = 4e-6
MAX_FACTOR = 1 << 12


class Verdict(NamedTuple):
    """What sampling costs now: what a sampled step takes longer, how uncertain that is (both in seconds), and the
    share of the whole run that is, with its bounds."""

    extra: float
    uncertainty: float
    share: float
    low: float
    high: float
    #: As much of `low` as is told from what the job does on these very steps.
    certain: float


class _Turn:
    """What is known of the steps of one kind that are to be sampled."""

    def __init__(self, num: int) -> None:
        self.sampled: deque[float] = deque(maxlen=num)
        self.controls: deque[float] = deque(maxlen=num)

    @property
    def is_checked(self) -> bool:
        return len(self.controls) >= MIN_STEPS

    def bounds(self) -> tuple[float, float, float]:
        """By what part of a step sampled ones are longer: at least, probably, at most."""
        low, middle, high = _bounds(list(self.sampled))
        if not self.is_checked:
            return low, middle, high
        least, usually, most = _bounds(list(self.controls))
        return low - most, middle - usually, high - least


class Governor:
    """Decides which of the steps that `trace.every` names are sampled."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        #: How many times rarer, as the budget wants it: 1, 2, 4 …
        self._lowered = 1
        self.num_sampled = 0
        self._neighbours: deque[float] = deque(maxlen=2 * NEIGHBOURS)
        self._num_others = 0
        #: Steps whose neighbours have not all come: by when they will have, what they say something about, duration.
        self._waiting: deque[tuple[int, deque[float], float]] = deque(maxlen=4 * NEIGHBOURS)
        #: How much longer than their neighbours steps took, as a part of these: sampled ones and controls, first of the
        #: usual turns of `trace.every`, then of those of `trace.deep_every`.
        self._turns = (_Turn(100), _Turn(40))
        self._usual: deque[float] = deque(maxlen=100)  # seconds
        self._durations: deque[float] = deque(maxlen=100)  # of sampled steps
        self._calls_a_step = 0.0
        self._budget = 0.0

    @property
    def factor(self) -> int:
        """How many times rarer than `trace.every` steps are sampled."""
        return 1 if self._settings.is_by_hand("trace.every") else self._lowered

    @property
    def every(self) -> int:
        """One step in this many is sampled, by and large; 0 for none."""
        return int(self._settings["trace.every"]) * self.factor

    def takes(self, index: int) -> bool:
        """Whether to sample the step that is number `index` of those that `trace.every` names."""
        return not _scattered(index) & (self.factor - 1)

    def note(self, step: Step) -> None:
        """A step has ended."""
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
        """The steps from now on are of another kind."""
        for noted in (self._usual, self._durations, self._neighbours, self._waiting):
            noted.clear()
        for turn in self._turns:
            turn.sampled.clear()
            turn.controls.clear()

    def review(self, calls_a_step: float, others: float = 0.0) -> Verdict | None:
        """Look at what sampling has cost of late, and adapt it; all else has cost the share `others` of the run. None
        while too little is known."""
        budget = float(self._settings["trace.budget"]) / 100
        self._budget = budget = max(budget - others, budget * MIN_PART)
        self._calls_a_step = calls_a_step
        verdict = self.verdict()
        if not budget:
            self._lowered = 1
        if verdict is None or not budget or self._settings.is_by_hand("trace.every"):
            return verdict
        share = verdict.share * self._lowered  # were it sampled as the user set it
        if verdict.low > budget:
            most = MAX_FACTOR if verdict.certain > budget else MAX_UNCHECKED
            while self._lowered < most and share / self._lowered > budget:
                self._lowered *= 2
        elif self._lowered > 1 and verdict.low * 2 <= budget * COMES_BACK:
            self._lowered //= 2
        elif self._lowered == 1:
            for turn in self._turns:
                if turn.controls:
                    turn.controls.popleft()  # no new ones come, and what they say gets old
        return verdict

    def verdict(self) -> Verdict | None:
        """What sampling costs; None while too little is known."""
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
        """How many steps there are to a sampled one now, and why."""
        every, verdict = int(self._settings["trace.every"]), self.verdict()
        costs = ""
        if verdict is not None:
            low, high = (100 * max(0.0, bound) for bound in (verdict.low, verdict.high))
            costs = f"{max(0.0, 100 * verdict.share):.2g} % of the training's time ({low:.2g} to {high:.2g})"
        if self.factor > 1:
            return str(self.every), (
                f"one step in {every} would cost more than trace.budget; one in {self.every}, by chance, costs {costs}"
            )
        if not self._settings.is_by_hand("trace.every"):
            return str(every), ""
        if verdict is not None and self._budget and verdict.low > self._budget:
            return str(every), (
                f"set by hand, so it holds; it costs {costs}, more than trace.budget leaves for it:"
                " trace.every=default has the budget decide"
            )
        return str(every), "set by hand, so it holds whatever it costs"


def _scattered(number: int) -> int:
    """A number made of `number` whose bits follow no period that a job could have; the same on every rank."""
    number = number * 0x9E3779B1 & 0xFFFFFFFF
    number = (number ^ number >> 15) * 0x85EBCA77 & 0xFFFFFFFF
    return number ^ number >> 13


def _median(durations: Sequence[float]) -> float:
    return sorted(durations)[len(durations) // 2]


def _bounds(values: Sequence[float]) -> tuple[float, float, float]:
    """The median between what it is above and below but once in a hundred, whatever is spread how."""
    ordered, num = sorted(values), len(values)
    below = max(0, int(num / 2 - Z * sqrt(num) / 2))
    return ordered[below], ordered[num // 2], ordered[num - 1 - below]
