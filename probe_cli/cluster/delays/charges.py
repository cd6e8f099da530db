"""Every wait charged to the own time that caused it.

While one rank waits, the one it waits for does its own work, and then the wait is charged to that; or it waits itself,
and then the charge goes on to whom it waits for; or data are on their way, which no rank causes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .blocking import Waits
from .calls import Calls, Names
from .timeline import CALL, END, Timeline

__all__ = ["Charge", "Charged", "Slot", "charge", "largest"]

#: A charge goes on from rank to rank at most so often: clocks that are wrong could send it round in circles.
MAX_DEPTH = 64
#: Shorter than this is nothing.
NOTHING_S = 1e-9


@dataclass(frozen=True)
class Slot:
    """A stretch of own time, named by the call that follows: before the rank calls it, before it waits for one that
    it has called earlier (async), or after the last of the step."""

    before: Literal["call", "wait", "end"]
    op: str = ""
    group: str = ""
    #: Its number among the calls of this op in this group within the step, from 0.
    ordinal: int = 0

    def __str__(self) -> str:
        if self.before == "end":
            return "after the last collective"
        what = f"{self.op} {self.ordinal} of group {self.group}"
        return f"before {what}" if self.before == "call" else f"before the wait for {what}"


@dataclass(frozen=True)
class Charge:
    """Rank-seconds that other ranks stood still for this stretch of one rank's own time, in all steps together."""

    #: Index into `Analysis.who`.
    rank: int
    slot: Slot
    #: What the rank was in when it made the call that ends the stretch, such as "backward"; "" where not known.
    phase: str
    seconds: float


@dataclass(frozen=True)
class Charged:
    """Rank-seconds: by rank that caused them and step in which they were waited, and by stretch of own time."""

    by_rank: np.ndarray
    #: By moment of the timeline: charged to the own time before it.
    by_moment: np.ndarray
    #: What data on their way caused, and what is charged to nobody.
    transfer_s: float
    unknown_s: float


def charge(line: Timeline, waits: Waits, calls: Calls, begin: np.ndarray, num_steps: int) -> Charged:
    """Charge all waits. `begin` is when each rank's timeline begins."""
    num_ranks = line.num_ranks
    moment = np.flatnonzero(line.wait >= 0)
    wait = line.wait[moment]
    came, left = line.at[moment], line.until[moment]
    until = np.clip(waits.until[wait], came, left)
    # By moment of the timeline: until when it waited for somebody, and for whom.
    waited_until, waited_for = line.until.copy(), np.full(len(line.at), -1)
    waited_until[moment] = until
    is_known = (waits.cause[wait] >= 0) & ~waits.unknown[wait]
    waited_for[moment[is_known]] = calls.rank[waits.cause[wait[is_known]]]
    unknown = float((until - came)[~is_known].sum())

    span = float(line.until.max(initial=0.0) - begin.min()) + 1.0
    key = line.rank * span + line.until - begin.min()
    before = line.at - line.own
    by_moment = np.zeros(len(line.at))
    by_rank = np.zeros(num_ranks * num_steps)
    transfer = 0.0
    some = is_known & (until - came > NOTHING_S)
    rank, low, high = waited_for[moment[some]], came[some], until[some]
    step = line.step[moment[some]]
    for _ in range(MAX_DEPTH):
        if not len(rank):
            break
        first = np.searchsorted(key, rank * span + low - begin.min(), side="right")
        last = np.searchsorted(key, rank * span + high - begin.min(), side="left")
        first = np.clip(first, line.bounds[rank], line.bounds[rank + 1] - 1)
        last = np.clip(last, first, line.bounds[rank + 1] - 1)
        counts = last - first + 1
        which = np.repeat(np.arange(len(rank)), counts)
        place = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        low_of, high_of = low[which], high[which]
        own = np.maximum(np.minimum(high_of, line.at[place]) - np.maximum(low_of, before[place]), 0.0)
        on_low, on_high = np.maximum(low_of, line.at[place]), np.minimum(high_of, waited_until[place])
        on = np.maximum(on_high - on_low, 0.0)
        carried = np.maximum(np.minimum(high_of, line.until[place]) - np.maximum(low_of, waited_until[place]), 0.0)
        by_moment += np.bincount(place, own, len(by_moment))
        by_rank += np.bincount(rank[which] * num_steps + step[which], own, len(by_rank))
        is_on = (on > NOTHING_S) & (waited_for[place] >= 0)
        transfer += float(carried.sum())
        # What is before or after all that is known of the rank, or waited for nobody knows whom.
        unknown += float((high - low).sum() - own.sum() - carried.sum() - on[is_on].sum())
        rank, low, high, step = waited_for[place[is_on]], on_low[is_on], on_high[is_on], step[which[is_on]]
    unknown += float((high - low).sum())
    return Charged(by_rank.reshape(num_ranks, num_steps), by_moment, transfer, max(unknown, 0.0))


def largest(line: Timeline, charged: Charged, calls: Calls, names: Names, step: np.ndarray, num: int) -> list[Charge]:
    """The `num` largest charges, by rank and stretch over all steps."""
    some = np.flatnonzero(charged.by_moment > 0)
    if not len(some):
        return []
    ordinal = _ordinals(calls, step)
    call, kind = line.call[some], line.kind[some]
    columns = [line.rank[some], kind]
    columns += [np.where(call >= 0, column[call], -1) for column in (calls.group, calls.op, ordinal, calls.phase)]
    key = np.zeros(len(some), dtype=np.int64)
    for column in columns:
        key = key * (int(column.max()) + 2) + column + 1
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    seconds = np.bincount(inverse, charged.by_moment[some])
    found = []
    for at in np.argsort(-seconds, kind="stable")[:num].tolist():
        rank, moment, group, op, number, phase = (int(column[first[at]]) for column in columns)
        slot = Slot("end")
        if moment != END:
            before: Literal["call", "wait"] = "call" if moment == CALL else "wait"
            slot = Slot(before, names.ops[op], names.groups[group], number)
        found.append(Charge(rank, slot, names.phases[phase] if phase >= 0 else "", float(seconds[at])))
    return found


def _ordinals(calls: Calls, step: np.ndarray) -> np.ndarray:
    """The number of each call among those of its op and group in its rank's step."""
    order = np.lexsort((calls.start, calls.op, calls.group, step, calls.rank))
    same = np.ones(len(order), dtype=bool)
    same[:1] = False
    for column in (calls.rank, step, calls.group, calls.op):
        same[1:] &= column[order][1:] == column[order][:-1]
    begins = np.flatnonzero(~same)
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    return number
