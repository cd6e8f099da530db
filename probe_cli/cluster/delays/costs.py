"""What some ranks cost the job: seconds a step, share of its time with a confidence interval, how often, since when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Cost", "cost", "resample"]

#: Samples of the bootstrap, and what they leave out at each end: a confidence of 95 %.
NUM_SAMPLES, TAIL = 1_000, 0.025
#: It recurs, if so many of the costly steps are a period apart, and so many of the steps a period apart are costly.
REGULAR = 0.8
#: Steps of a kind that are needed before anything is said about when they come.
FEW = 3
#: It has begun at some step, if before it there was less than this part of what there was after.
LITTLE = 0.2
#: And if so many steps are before it, and as many as cost something so often by chance.
EARLIEST, EARLIEST_OF_FEW = 5, 5
#: What comes with a period of so many steps may come a step earlier or later; so often that it is no chance.
LONG, OFTEN = 5, 6


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
    #: What they have in common and no other rank has: coordinates such as "pp", "host", "work" (the same calls in each
    #: step); "rank" of a single rank, "ranks" of several without anything in common.
    kinds: tuple[str, ...] = ("rank",)

    @property
    def kind(self) -> str:
        """The first of `kinds`."""
        return self.kinds[0]


def cost(
    ranks: Sequence[int], per_step: np.ndarray, lengths: np.ndarray, steps: np.ndarray, kinds: Sequence[str]
) -> Cost:
    """`per_step` is what is saved, `lengths` how long the steps took, `steps` their numbers."""
    hits = costly(per_step)
    period = _period(hits)
    frequency = float(hits.mean()) if len(hits) else 0.0
    time = float(lengths.sum())
    shares = resample(per_step, lengths, period or 1)
    low, high = np.quantile(shares, [TAIL, 1 - TAIL]) if len(shares) else (0.0, 0.0)
    return Cost(
        ranks=tuple(sorted(ranks)),
        per_step=per_step,
        seconds_a_step=float(per_step.mean()) if len(per_step) else 0.0,
        share=float(per_step.sum()) / time if time > 0 else 0.0,
        low=float(low),
        high=float(high),
        frequency=1 / period if period else frequency,
        period=period,
        since=_since(per_step, steps, 2 * period if period else round(EARLIEST_OF_FEW / max(frequency, 1e-9))),
        kinds=tuple(kinds),
    )


def resample(per_step: np.ndarray, lengths: np.ndarray, period: int) -> np.ndarray:
    """Shares of the time by block bootstrap: steps that follow each other stay together, a period at least."""
    num = len(per_step)
    if not num or lengths.sum() <= 0:
        return np.zeros(0)
    block = min(num, max(round(num**0.5), period))
    chance = np.random.default_rng(num)  # the same rows get the same answer
    starts = chance.integers(0, num, (NUM_SAMPLES, -(-num // block)))
    saved, taken = _sums(per_step, block), _sums(lengths, block)
    shares: np.ndarray = saved[starts].sum(axis=1) / taken[starts].sum(axis=1)
    return shares


def _sums(values: np.ndarray, block: int) -> np.ndarray:
    """The sum of the `block` values from each place on, round the end."""
    total = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values[:block]]))])
    sums: np.ndarray = total[block : block + len(values)] - total[: len(values)]
    return sums


def costly(per_step: np.ndarray) -> np.ndarray:
    """The steps that have at least half of what a second spent on it typically belongs to: half of all the seconds are
    in steps that have as much. So one long stall beside a cost in every step does not hide it."""
    saved = np.maximum(per_step, 0.0)
    if saved.sum() <= 0:
        return np.zeros(len(per_step), dtype=bool)
    sizes = np.sort(saved)
    total = np.cumsum(sizes)
    hits: np.ndarray = saved >= 0.5 * float(sizes[np.searchsorted(total, total[-1] / 2)])
    return hits


def _period(hits: np.ndarray) -> int | None:
    every = np.flatnonzero(hits)
    # A rank that is late at the end of a step is waited for in the next one, and half of the cost may be in each.
    at = every[np.diff(every, prepend=-2) > 1]
    if len(at) < FEW or len(every) > len(hits) / 2 + 1 or len(every) > 2 * len(at):
        return None
    for period in np.unique(np.diff(at)).tolist():
        around = [-1, 0, 1] if period >= LONG and len(at) >= OFTEN else [0]
        num_at = np.bincount(at % period, minlength=period)
        phase = int(np.sum([np.roll(num_at, shift) for shift in around], axis=0).argmax())
        due = np.arange(phase, len(hits), period)
        due = due[(due >= at[0] - 1) & (due <= at[-1] + 1)] if around[1:] else due[(due >= at[0]) & (due <= at[-1])]
        is_due = np.isin((at - phase) % period, np.array(around) % period)
        is_hit = np.any([hits[np.clip(due + shift, 0, len(hits) - 1)] for shift in around], axis=0)
        if is_due.mean() >= REGULAR and is_hit.mean() >= REGULAR:
            return int(period)
    return None


def _since(per_step: np.ndarray, steps: np.ndarray, before_it: int) -> int | None:
    """Return the step where the means of those before, `before_it` at least, and of those after differ most, if there
    was next to nothing before."""
    num, margin = len(per_step), max(EARLIEST, before_it)
    if num < 2 * margin:
        return None
    total = np.cumsum(per_step)
    at = np.arange(margin, num - EARLIEST + 1)
    before, after = total[at - 1] / at, (total[-1] - total[at - 1]) / (num - at)
    best = int((at * (num - at) * (after - before) ** 2).argmax())
    if after[best] <= 0 or before[best] > LITTLE * after[best]:
        return None
    # Noise has a best place too: what comes after has to differ by more than it scatters.
    place = int(at[best])
    scatter = np.hypot(per_step[:place].std() / place**0.5, per_step[place:].std() / (num - place) ** 0.5)
    return int(steps[place]) if after[best] - before[best] > 4 * scatter else None
