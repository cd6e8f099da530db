"""When a rank stood still, for which call, and until when it did so for somebody.

A call that Python made says how long its wait() took. Of others only the start is known: those that C++ made (DDP's
reducer, functional collectives), and those that a device does. Whether somebody waits for such a call before the next
one of the group shows by itself: not where ranks went on to that one before the last of them had come to this one, and
not where they came to that one no later for it. A rank then stands still for the last such call of the group in its
step, and so for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .alignment import Window
from .calls import Calls, Names
from .matching import Matched

__all__ = ["EXACT_S", "Waits", "waits"]

#: Times are recorded in microseconds, and read a moment before or after what they are of.
EXACT_S = 5e-6
#: A call returns before it is over, if in the time that its ranks came apart so much was spent in other calls.
GOES_ON = 0.05
#: So many waits tell whether the next call came later for them.
ENOUGH = 20
#: A send does not wait for its receive (it is buffered), if so many are over before.
BUFFERED = 0.05


@dataclass(frozen=True)
class Waits:
    """One row each time that a rank stood still, by rank and time."""

    call: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    #: The call of another rank that ended it, -1 where it is not known; for a collective that needs all its ranks, the
    #: last of them.
    cause: np.ndarray
    #: Whether all ranks of the collective had to come, not `cause` alone.
    needs_all: np.ndarray
    #: Until when it waited for somebody: from there on for data on their way.
    until: np.ndarray
    #: Whether what it waited for is not known, or the wait shorter than the clocks of two hosts are.
    unknown: np.ndarray


def waits(
    calls: Calls, names: Names, matched: Matched, window: Window, step: np.ndarray, clocks: np.ndarray, host: np.ndarray
) -> Waits:
    """The waits in these calls. `clocks` is how far each rank's times may be wrong, `host` whose clock it has."""
    told = ~np.isnan(calls.wait) & ~calls.on_device & ~calls.by_cpp
    call = np.flatnonzero(told)
    begin, end = np.maximum(calls.ended - calls.wait, calls.start)[call], calls.ended[call]
    guessed, guessed_begin, guessed_end = _not_told(calls, matched, window, step, clocks, host)
    call = np.concatenate([call, guessed])
    begin = np.concatenate([begin, guessed_begin])
    end = np.maximum(np.concatenate([end, guessed_end]), begin)
    order = np.lexsort((begin, calls.rank[call]))
    call, begin, end = call[order], begin[order], end[order]
    cause, needs_all, is_buffered = _causes(calls, names, matched, call, end, clocks, host)
    came = np.where(cause >= 0, calls.start[cause], begin)
    until = np.clip(came, begin, end)
    error = _error(calls, call, cause, clocks, host)
    unknown = (until - begin > 0) & (until - begin < error)
    lost = (cause < 0) & ~is_buffered
    return Waits(call, begin, end, cause, needs_all, np.where(lost, end, until), unknown | lost)


def _error(calls: Calls, one: np.ndarray, other: np.ndarray, clocks: np.ndarray, host: np.ndarray) -> np.ndarray:
    """How far the times of two calls may be wrong against each other."""
    first, second = calls.rank[one], calls.rank[other]
    apart = (other >= 0) & (host[first] != host[second])
    return EXACT_S + np.where(apart, clocks[first] + clocks[second], 0.0)


def _not_told(
    calls: Calls, matched: Matched, window: Window, step: np.ndarray, clocks: np.ndarray, host: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The calls without a recorded wait for which a rank stood still, from when and until when."""
    at = np.flatnonzero((calls.by_cpp | calls.on_device) & (matched.collective >= 0))
    if not len(at):
        return at, np.zeros(0), np.zeros(0)
    last = matched.last[matched.collective[at]]
    came = calls.start[last]
    error = _error(calls, at, last, clocks, host)
    step_end = window.ends[calls.rank[at], step[at] + 1]
    optimizer = window.optimizer[calls.rank[at], step[at]]
    in_backward = calls.by_cpp[at] & (calls.start[at] <= optimizer)
    bound = np.where(in_backward, optimizer, step_end)
    # The calls of a group in a step: which one is the next, and which one has none.
    num_steps = window.ends.shape[1]
    key = (calls.group[at] * (calls.rank.max() + 1) + calls.rank[at]) * num_steps + step[at]
    order = np.lexsort((calls.start[at], key))
    has_next = np.append(key[order][1:] == key[order][:-1], False)
    begins = np.flatnonzero(np.diff(key[order], prepend=-1))
    number = np.empty(len(at), dtype=np.int64)
    number[order] = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    following = np.append(calls.start[at[order]][1:], 0.0)
    bound[order[has_next]] = np.minimum(bound[order], following)[has_next]
    is_last = np.ones(len(at), dtype=bool)
    is_last[order[has_next]] = False
    # Of each call of the step: how long its ranks came apart, and how much of that they spent in later calls.
    apart = np.maximum(came - calls.start[at] - error, 0.0)
    went_on = np.maximum(apart - np.maximum(bound - calls.start[at], 0.0), 0.0)
    slot = number * (calls.group.max() + 1) + calls.group[at]
    values, inverse = np.unique(slot, return_inverse=True)
    share = np.bincount(inverse, went_on, len(values)) / np.maximum(np.bincount(inverse, apart, len(values)), 1e-12)
    between = np.empty(len(at))
    between[order] = np.append(calls.start[at[order]][1:], 0.0) - calls.start[at[order]]
    paired = ~is_last & (apart > 0)
    ignored = _ignored(inverse[paired], calls.rank[at[paired]], apart[paired], between[paired], len(values))
    stands = is_last | ((share < GOES_ON) & ~ignored)[inverse]
    # Where it went on before the last one came, it can not have waited for that one.
    stands &= came <= bound + error
    at, came, error, bound = at[stands], came[stands], error[stands], bound[stands]
    end = np.minimum(np.maximum(came - np.where(error > EXACT_S, error, 0.0), calls.start[at]), bound)
    return at, _latest(calls, at, end), end


def _ignored(slot: np.ndarray, rank: np.ndarray, apart: np.ndarray, between: np.ndarray, num_slots: int) -> np.ndarray:
    """By slot: whether ranks came to the next call no later the longer the last rank kept them waiting for this one.

    Who stands still comes to the next call later by as much. A line is fitted to what each rank did in all steps: its
    slope is 1 for ranks that stood still and 0 for ranks that went on, however late the last one always is.
    """
    cell = slot * (int(rank.max(initial=0)) + 1) + rank
    counts = np.maximum(np.bincount(cell), 1)
    x, y = (values - (np.bincount(cell, values) / counts)[cell] for values in (apart, between))
    num = np.bincount(slot, minlength=num_slots)
    xx, xy, yy = (np.bincount(slot, product, num_slots) for product in (x * x, x * y, y * y))
    slope = xy / np.maximum(xx, EXACT_S**2)
    error = np.sqrt(np.maximum(yy - slope * xy, 0.0) / np.maximum(num - 2, 1) / np.maximum(xx, EXACT_S**2))
    ignored: np.ndarray = (num >= ENOUGH) & (slope < 0.5) & (slope + 2 * error < 1.0)
    return ignored


def _latest(calls: Calls, at: np.ndarray, until: np.ndarray) -> np.ndarray:
    """The last that each rank is known to have done before `until`: from then on it may have stood still.

    What waits for a collective may come to its result some calls later (functional collectives wait at the first use).
    """
    told = np.flatnonzero(~np.isnan(calls.wait) & ~calls.on_device & ~calls.by_cpp)
    rank = np.concatenate([calls.rank, calls.rank[told]])
    moment = np.concatenate([calls.start, calls.ended[told]])
    # Of a wait that goes on beyond it, nothing is left.
    spans = np.concatenate([np.zeros(len(calls)), calls.wait[told]])
    order = np.lexsort((moment, rank))
    rank, moment, spans = rank[order], moment[order], spans[order]
    low = float(moment.min())
    span = float(max(moment.max(), until.max())) - low + 1.0
    key = rank * span + moment - low
    place = np.searchsorted(key, calls.rank[at] * span + until - low, side="left")
    before = np.maximum(place - 1, 0)
    begin = np.where((place > 0) & (rank[before] == calls.rank[at]), moment[before], calls.start[at])
    after = np.minimum(place, len(rank) - 1)
    in_wait = (rank[after] == calls.rank[at]) & (moment[after] - spans[after] < until) & (spans[after] > 0)
    found: np.ndarray = np.where(in_wait, until, np.clip(begin, calls.start[at], until))
    return found


def _causes(
    calls: Calls,
    names: Names,
    matched: Matched,
    call: np.ndarray,
    end: np.ndarray,
    clocks: np.ndarray,
    host: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each wait the call that ended it, whether all of the collective had to come, whether it was for nobody."""
    cause = np.full(len(call), -1)
    needs_all = np.zeros(len(call), dtype=bool)
    collective = matched.collective[call]
    of_all = np.flatnonzero(collective >= 0)
    last = matched.last[collective[of_all]]
    error = _error(calls, call[of_all], last, clocks, host)
    is_needed = end[of_all] >= calls.start[last] - error
    is_guessed = calls.by_cpp[call[of_all]] | calls.on_device[call[of_all]]
    needs_all[of_all] = is_needed | is_guessed
    cause[of_all] = last
    # Over before the last one came (a broadcast to those who need its root alone): the one that came last until then.
    early = of_all[~needs_all[of_all]]
    if len(early):
        span = float(calls.start.max() - calls.start.min()) + 1.0
        number = np.repeat(np.arange(len(matched.bounds) - 1), np.diff(matched.bounds))
        key = number * span + calls.start[matched.members]
        place = np.searchsorted(key, collective[early] * span + end[early] + EXACT_S, side="right") - 1
        cause[early] = matched.members[np.maximum(place, matched.bounds[collective[early]])]
    alone = np.flatnonzero(calls.peer[call] >= 0)
    partner = matched.partner[call[alone]]
    is_send = names.is_op(calls.op[call[alone]], "send")
    error = _error(calls, call[alone], partner, clocks, host)
    in_time = (partner >= 0) & (end[alone] >= calls.start[partner] - error)
    pair = calls.rank[call[alone]] * (calls.rank.max(initial=0) + 1) + calls.peer[call[alone]]
    values, inverse = np.unique(pair, return_inverse=True)
    sends = np.bincount(inverse, is_send & (partner >= 0), len(values))
    over_before = np.bincount(inverse, is_send & (partner >= 0) & ~in_time, len(values))
    is_buffered = is_send & (over_before > BUFFERED * sends)[inverse]
    cause[alone] = np.where(in_time & ~is_buffered, partner, -1)
    buffered = np.zeros(len(call), dtype=bool)
    buffered[alone] = is_buffered
    # Whoever came last itself waits for nobody.
    return cause, needs_all, buffered
