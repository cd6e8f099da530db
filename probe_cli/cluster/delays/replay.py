"""The same job again, with some own time taken away: when would each step have ended.

A rank comes to its next call when its own time since the last wait is over; a wait is over when all that it needs have
come, plus the time that data were on their way. Waits are replayed in rounds: in each one all those whose needs are
known, for several what-ifs at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from .blocking import Waits
from .matching import Matched
from .timeline import END, WAIT, Timeline

__all__ = ["Replay", "WhatIf"]

#: Numbers in the largest array of a replay.
MAX_NUMBERS = 24_000_000
#: For some ranks what is taken away before each of their moments.
WhatIf = Mapping[int, np.ndarray]


@dataclass(frozen=True)
class _Round:
    """Waits that can be replayed at the same time; what they are about lies side by side in the columns of `Replay`."""

    rank: np.ndarray
    waits: slice
    #: The calls of collectives that are whole now, and where each collective begins among them.
    members: np.ndarray
    bounds: np.ndarray
    #: For each wait what it needs: a place in `bounds`, or the call of another rank; -1 where it is not that.
    collective: np.ndarray
    call: np.ndarray
    #: What is known once these are over: calls of their ranks and ends of steps up to the next wait.
    points: slice
    of_rank: np.ndarray


class Replay:
    """The order of one timeline, to be replayed with other own times."""

    def __init__(self, line: Timeline, waits: Waits, matched: Matched, begin: np.ndarray, num_steps: int) -> None:
        self._num_ranks, self._num_steps = line.num_ranks, num_steps
        self._begin = begin
        self._bounds = line.bounds
        self._is_wait = line.kind == WAIT
        moments = np.flatnonzero(self._is_wait)
        wait = line.wait[moments]
        came, left = line.at[moments], line.until[moments]
        cause = waits.cause[wait]
        cause_at = np.where(cause >= 0, line.at[line.of_call[cause]], came)
        # A clock that is a little wrong: it was over before the last one came.
        early = np.minimum(left - cause_at, 0.0)
        carried = left - np.maximum(came, cause_at + early)
        collective = np.where((cause >= 0) & waits.needs_all[wait], matched.collective[waits.call[wait]], -1)
        single = np.where((cause >= 0) & ~waits.needs_all[wait], cause, -1)
        order = _Order(line, matched, moments, collective, single, early, carried)
        self._rounds = order.rounds
        point_order, wait_order = np.concatenate(order.points), np.concatenate(order.waits)
        #: Where each moment is in the order of the rounds, among the waits or among the others.
        self._place = np.empty(len(line.at), dtype=np.int64)
        self._place[point_order] = np.arange(len(point_order))
        self._place[moments[wait_order]] = np.arange(len(wait_order))
        self._early, self._carried = early[wait_order][:, None], carried[wait_order][:, None]
        # Own time since the beginning.
        total = np.cumsum(line.own)
        own = begin[line.rank] + total - np.concatenate([[0.0], total])[line.bounds[line.rank]]
        self._own, self._own_at_wait = own[point_order], own[moments[wait_order]]
        self._ends = self._place[line.kind == END]
        self.recorded = self._lengths(self._run([{}]))[:, 0]

    def saved(self, what_ifs: Iterable[WhatIf]) -> np.ndarray:
        """By what-if and step: how much shorter the step is."""
        found = [np.zeros((0, self._num_steps))]
        rest = iter(what_ifs)
        while some := list(islice(rest, max(1, MAX_NUMBERS // max(1, len(self._place))))):
            found.append((self.recorded[:, None] - self._lengths(self._run(some))).T)
        return np.concatenate(found)

    def _lengths(self, ends: np.ndarray) -> np.ndarray:
        """By step and what-if: how long the job's step was."""
        mean = ends.reshape(self._num_ranks, self._num_steps, -1).mean(axis=0)
        lengths: np.ndarray = np.diff(mean, axis=0, prepend=np.full((1, mean.shape[1]), self._begin.mean()))
        return lengths

    def _run(self, what_ifs: list[WhatIf]) -> np.ndarray:
        """Replay; return when each step ended, by rank and step in one, and by what-if."""
        at = np.repeat(self._own[:, None], len(what_ifs), axis=1)  # and what the rank has stood still, once it is known
        own_at_wait = np.repeat(self._own_at_wait[:, None], len(what_ifs), axis=1)
        for number, what_if in enumerate(what_ifs):
            for rank, taken in what_if.items():
                moments = slice(self._bounds[rank], self._bounds[rank + 1])
                is_wait, place, total = self._is_wait[moments], self._place[moments], np.cumsum(taken)
                at[place[~is_wait], number] -= total[~is_wait]
                own_at_wait[place[is_wait], number] -= total[is_wait]
        stood = np.zeros((self._num_ranks, len(what_ifs)))
        for now in self._rounds:
            if len(now.rank):
                came = own_at_wait[now.waits] + stood[now.rank]
                needed, early = came, self._early[now.waits]
                if len(now.bounds):
                    whole = np.maximum.reduceat(at[now.members], now.bounds, axis=0)
                    needed = np.where((now.collective >= 0)[:, None], whole[now.collective] + early, came)
                one = np.flatnonzero(now.call >= 0)
                if len(one):
                    needed = needed.copy()
                    needed[one] = at[now.call[one]] + early[one]
                stood[now.rank] += np.maximum(came, needed) + self._carried[now.waits] - came
            at[now.points] += stood[now.of_rank]
        ends: np.ndarray = at[self._ends]
        return ends


class _Order:
    """Finds the rounds: each rank goes from wait to wait, as far as what these need is known."""

    def __init__(
        self,
        line: Timeline,
        matched: Matched,
        waits: np.ndarray,
        collective: np.ndarray,
        single: np.ndarray,
        early: np.ndarray,
        carried: np.ndarray,
    ) -> None:
        """`waits` are the moments, the others columns of them; where clocks contradict each other, they are changed."""
        points = np.flatnonzero(line.kind != WAIT)
        rank_of_wait = line.rank[waits]
        next_wait = np.searchsorted(rank_of_wait, np.arange(line.num_ranks))
        last_wait = np.searchsorted(rank_of_wait, np.arange(1, line.num_ranks + 1))
        # What lies between a wait and the next one of its rank, and before the first one.
        after = np.searchsorted(points, waits)
        rank_ends = np.searchsorted(points, line.bounds)
        is_last = np.append(rank_of_wait[1:] != rank_of_wait[:-1], True)[: len(waits)]
        until = np.where(is_last, rank_ends[rank_of_wait + 1], np.append(after[1:], 0)[: len(waits)])
        before_first = rank_ends[1:].copy()
        has_waits = next_wait < last_wait
        before_first[has_waits] = after[next_wait[has_waits]]
        rank_of_call = line.rank[line.of_call]
        waits_before = np.searchsorted(waits, line.of_call)
        call_of_point = line.call[points]
        in_collective = np.where(call_of_point >= 0, matched.collective[call_of_point], -1)
        missing = np.diff(matched.bounds)

        self.rounds: list[_Round] = []
        self.points: list[np.ndarray] = []
        self.waits: list[np.ndarray] = []
        num_points = num_waits = 0
        place = np.full(len(line.at), -1)  # of a point in the order of the rounds
        nothing = np.zeros(0, dtype=np.int64)
        rank = now = whole = where = one = nothing
        found, of_rank = _ranges(rank_ends[:-1], before_first)
        while True:
            begins, ends = matched.bounds[whole], matched.bounds[whole + 1]
            members = place[line.of_call[matched.members[_ranges(begins, ends)[0]]]]
            call = np.where(one >= 0, place[line.of_call[one]], -1) if len(one) else nothing
            some = slice(num_waits, num_waits + len(now)), slice(num_points, num_points + len(found))
            bounds = np.cumsum(ends - begins) - (ends - begins)
            self.rounds.append(_Round(rank, some[0], members, bounds, where, call, some[1], of_rank))
            self.points.append(points[found])
            self.waits.append(now)
            place[points[found]] = np.arange(some[1].start, some[1].stop)
            num_points, num_waits = some[1].stop, some[0].stop
            seen = in_collective[found]
            np.subtract.at(missing, seen[seen >= 0], 1)

            rank = np.flatnonzero(next_wait < last_wait)
            if not len(rank):
                return
            now = next_wait[rank]
            group, one = collective[now], single[now]
            known = (one < 0) | (waits_before[one] <= next_wait[rank_of_call[one]])
            if len(missing):
                known &= (group < 0) | (missing[group] <= 0)
            if not known.any():
                # Clocks that are wrong: the one that was over first needed nobody.
                known[line.until[waits[now]].argmin()] = True
                stuck = now[known]
                early[stuck], carried[stuck] = 0.0, line.until[waits[stuck]] - line.at[waits[stuck]]
                collective[stuck] = single[stuck] = -1
                group, one = collective[now], single[now]
            rank, now, group, one = rank[known], now[known], group[known], one[known]
            whole, where = np.unique(group, return_inverse=True)
            if len(whole) and whole[0] < 0:
                whole, where = whole[1:], where - 1
            next_wait[rank] += 1
            found, which = _ranges(after[now], until[now])
            of_rank = rank[which]


def _ranges(begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All numbers from each begin to its end, and of which range each is."""
    counts = np.maximum(ends - begins, 0)
    which = np.repeat(np.arange(len(begins)), counts)
    return np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts - begins, counts), which
