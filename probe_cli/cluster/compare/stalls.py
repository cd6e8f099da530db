"""Who holds the others up now and then: a checkpoint every so many steps, an evaluation on one rank.

That is no reason to call a rank slow, since most steps are well; but it costs time, and it is always the same one. On a
noisy machine long stalls come too, to this rank and to that.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from .arrivals import Arrivals
from .facts import Who
from .words import percent, seconds

__all__ = ["now_and_then"]

#: A stall is this many times a step; so many of them, and such a part of all stalls, are no accident.
LONG, MIN_STALLS, SAME = 1.0, 5, 0.8
#: The least part of the time that they take together.
MIN_SHARE = 0.05


def now_and_then(seen: Arrivals, step_s: float) -> str | None:
    """A remark on the rank whose long stalls cost the others time; None when there is none."""
    stalls: dict[Who, list[float]] = defaultdict(list)
    for by_rank in seen.late.values():
        last = max(by_rank, key=lambda who: by_rank[who])
        if by_rank[last] > LONG * step_s:
            stalls[last].append(by_rank[last])
    if not stalls:
        return None
    who = max(stalls, key=lambda who: len(stalls[who]))
    mine, num = stalls[who], len(seen.late)
    share = sum(mine) / (sum(mine) + step_s * num)
    if len(mine) < MIN_STALLS or len(mine) < SAME * sum(map(len, stalls.values())) or share < MIN_SHARE:
        return None
    return (
        f"now and then {who} holds the others up: in {len(mine)} of {num} steps, by {seconds(median(mine))} (median),"
        f" {percent(share)} of the time (a checkpoint, an evaluation, a log?)"
    )
