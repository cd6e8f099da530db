"""Growth of a memory series: its slope per step and second, whether it is significant, and whether it matters.

Memory is autocorrelated: it may wander, jump once when a cache fills, or rise and fall like a saw. So not the values
are tested but their changes from window to window, resampled in blocks; a few jumps, or rises that are taken back, then
show no growth. The slope is Theil-Sen's. Plain functions without state.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median

__all__ = ["MIN_SAMPLES", "MIN_WINDOWS", "Sample", "State", "Trend", "trend", "weighed"]

#: Fewer windows than this are too few samples. A window takes its smallest value: what is given back within it is not
#: growth.
MIN_WINDOWS, MAX_WINDOWS = 12, 48
#: Windows are not shorter.
MIN_WINDOW_S = 0.3
#: Samples that it takes for the windows and those before them.
MIN_SAMPLES = 15
#: The first part of the job fills caches and pools.
WARM_UP = 0.2
#: A leak may have begun late: the newest part is tested by itself, too.
LATEST = 0.25
NUM_RESAMPLES = 2000
MAX_P = 0.001
#: Of the newer half alone, which has half the windows.
MAX_P_NEWER = 0.05
#: The newer half may not grow much more slowly than the whole: then it is levelling off.
LEVELLING = 0.5
#: Smaller changes in the time seen are of no interest.
MIN_MIB, MIN_SHARE = 4.0, 0.005
#: Growth is claimed once it has been seen for a fiftieth of the time in which it reaches a limit: what fills the memory
#: in half an hour is told after 36 s, and what does so in a day after ten minutes.
REACH = 50
MIN_SPAN_S, MAX_SPAN_S = 15.0, 600.0
#: Growth of which such a part is the use of memory that was asked for before fills that memory.
FILLED = 0.7
#: No job is harmed by what would fill the memory later than this.
HORIZON_S = 14 * 86_400.0


class State(enum.Enum):
    """The verdict on a series."""

    GROWS = "grows"
    FLAT = "not significant"
    LEVELLING = "levelling off"
    UNKNOWN = "too early to tell"


@dataclass(frozen=True)
class Sample:
    """The smallest value in a short time: MiB, with the seconds and the step at its end."""

    at: float
    step: float | None
    mib: float
    #: MiB that the process has asked for and not used yet; None where that is not known.
    untouched: float | None = None


@dataclass(frozen=True)
class Trend:
    """A series' growth. Rates are in MiB; those per step are None where no step has ended."""

    state: State
    num_samples: int
    span_s: float = 0.0
    num_steps: int = 0
    per_second: float = 0.0
    per_step: float | None = None
    #: Bounds of the slope per second, with 95 % confidence; `per_second` lies between them.
    low: float = 0.0
    high: float = 0.0
    #: Probability of such growth without any drift.
    p: float = 1.0
    last: float | None = None
    #: Of significant growth that was seen for too short a time: seconds until it can be judged.
    wait_s: float | None = None
    #: Of growth into memory that the job had asked for before, such as a replay buffer that fills: MiB still to fill.
    to_fill: float | None = None


@dataclass(frozen=True)
class _Window:
    at: float
    step: float | None
    mib: float


def trend(samples: Sequence[Sample]) -> Trend:
    """Return the growth of a series in the order of its times."""
    last = samples[-1].mib if samples else None
    if len(samples) < MIN_SAMPLES:
        return Trend(State.UNKNOWN, len(samples), last=last)
    begin = samples[0].at + WARM_UP * (samples[-1].at - samples[0].at)
    whole = replace(_tested([one for one in samples if one.at >= begin], len(samples)), to_fill=_to_fill(samples))
    newest_from = samples[-1].at - LATEST * (samples[-1].at - samples[0].at)
    if whole.state is not State.FLAT or samples[-1].mib <= max(one.mib for one in samples if one.at < newest_from):
        return whole  # what rises and falls has been as high before
    late = [one for one in samples if one.at >= newest_from]
    newest = replace(_tested(late, len(samples)), to_fill=_to_fill(late))
    return newest if newest.state is State.GROWS else whole


def weighed(found: Trend, headroom: float | None) -> Trend:
    """Return a trend whose growth is claimed only if it was seen long enough and matters, with `headroom` MiB to the
    nearest limit. What fills memory that was asked for before ends with it, unless the limit comes first. Without a
    known limit, it has to add a quarter to the memory or go on for ten minutes."""
    if found.state is not State.GROWS:
        return found
    if found.to_fill is not None and (headroom is None or found.to_fill < headroom):
        return replace(found, state=State.LEVELLING)
    at_first = (found.last or 0.0) - found.per_second * found.span_s
    full_s = max(0.0, REACH * at_first / 4 if headroom is None else headroom) / found.per_second
    if headroom is not None and full_s > HORIZON_S:
        return replace(found, state=State.FLAT)
    needed_s = min(MAX_SPAN_S, max(MIN_SPAN_S, full_s / REACH))
    if found.span_s < needed_s:
        return replace(found, state=State.UNKNOWN, wait_s=(needed_s - found.span_s) / (1 - WARM_UP))
    return found


def _to_fill(samples: Sequence[Sample]) -> float | None:
    """Return what is not used yet of memory that was asked for before, if most of the growth is its use."""
    untouched = [one.untouched for one in samples if one.untouched is not None]
    if len(untouched) < len(samples) or min(untouched) < 0:
        return None  # not told, as by a kernel that counts otherwise
    most = max(range(len(untouched)), key=untouched.__getitem__)
    since = samples[-1].mib - samples[most].mib
    filled = untouched[most] - untouched[-1]
    is_all = since >= FILLED * (samples[-1].mib - samples[0].mib)
    return untouched[-1] if is_all and filled >= FILLED * since > 0 else None


def _tested(samples: Sequence[Sample], num_samples: int) -> Trend:
    windows = _windows(samples)
    last = samples[-1].mib
    if len(windows) < MIN_WINDOWS:
        return Trend(State.UNKNOWN, num_samples, last=last)
    first, newest = windows[0], windows[-1]
    span_s = newest.at - first.at
    num_steps = int((newest.step or 0) - (first.step or 0)) if first.step is not None else 0
    totals = _resampled(windows)
    p = sum(total <= 0 for total in totals) / len(totals)
    per_second = _slope([(one.at, one.mib) for one in windows])
    growth = per_second * span_s
    state = State.FLAT
    if p <= MAX_P and growth >= max(MIN_MIB, MIN_SHARE * fmean(one.mib for one in windows)):
        newer = windows[len(windows) // 2 :]
        newer_totals = _resampled(newer)
        rises = sum(total <= 0 for total in newer_totals) / len(newer_totals) <= MAX_P_NEWER
        keeps_on = _slope([(one.at, one.mib) for one in newer]) >= LEVELLING * per_second
        state = State.GROWS if rises and keeps_on else State.LEVELLING
    return Trend(
        state,
        num_samples,
        span_s,
        num_steps,
        per_second,
        growth / num_steps if num_steps > 0 else None,
        # A median and means: where the job slows down at times, the median may lie beyond what was drawn.
        min(per_second, totals[int(0.025 * len(totals))] / span_s),
        max(per_second, totals[int(0.975 * len(totals))] / span_s),
        p,
        last,
    )


def _windows(samples: Sequence[Sample]) -> list[_Window]:
    """Return windows of equal length, without those in which there is no sample."""
    begin, end = samples[0].at, samples[-1].at
    count = min(MAX_WINDOWS, len(samples), int((end - begin) / MIN_WINDOW_S))
    if count < MIN_WINDOWS:
        return []
    inside: dict[int, list[Sample]] = {}
    for sample in samples:
        inside.setdefault(min(count - 1, int((sample.at - begin) / (end - begin) * count)), []).append(sample)
    return [
        _Window(fmean(one.at for one in found), found[-1].step, min(one.mib for one in found))
        for _, found in sorted(inside.items())
    ]


def _resampled(windows: Sequence[_Window]) -> list[float]:
    """Return sorted totals of their changes, drawn in blocks, as if the same memory had behaved so again."""
    changes = [after.mib - before.mib for before, after in pairwise(windows)]
    draw = random.Random(len(changes))  # the same answer for the same data
    size = max(2, round(len(changes) ** (1 / 3)))
    doubled = [*changes, *changes]
    blocks = [sum(doubled[at : at + size]) for at in range(len(changes))]
    num_blocks = len(changes) / size
    whole, rest = int(num_blocks), len(changes) - int(num_blocks) * size
    ends = [sum(doubled[at : at + rest]) for at in range(len(changes))]
    return sorted(
        sum(draw.choices(blocks, k=whole)) + (draw.choice(ends) if rest else 0.0) for _ in range(NUM_RESAMPLES)
    )


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return Theil-Sen's slope: the median of the slopes between any two points."""
    return median(
        (after[1] - before[1]) / (after[0] - before[0])
        for at, before in enumerate(points)
        for after in points[at + 1 :]
        if after[0] > before[0]
    )
