"""The same job again, with some own time taken away: when would each step have ended.

A rank comes to its next call when its own time since the last wait is over; a wait is over when all that it needs have
come, plus the time that data were on their way. Waits are replayed in rounds: in each one all those whose needs are
known, for several what-ifs at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from .blocking import Waits
from .matching import Matched
from .timeline import END, WAIT, Timeline

__all__ = ["Replay"]

#: Numbers in the largest array of a replay.
MAX_NUMBERS = 12_000_000


@dataclass(frozen=True)
class _Round:
    """Waits that can be replayed at the same time."""

    rank: np.ndarray
    wait: np.ndarray  # index into the columns of `Replay`
    #: The calls of collectives that are whole now, and where each collective begins among them.
    members: np.ndarray
    bounds: np.ndarray
    #: For each wait what it needs: a place in `bounds`, or the point of another rank's call, or -1.
    collective: np.ndarray
    call: np.ndarray
    #: What is known once these are over: points of their ranks up to the next wait.
    points: np.ndarray
    of_rank: np.ndarray


class Replay:
    """The order of one timeline, to be replayed with other own times."""

    def __init__(self, line: Timeline, waits: Waits, matched: Matched, begin: np.ndarray, num_steps: int) -> None:
        self._num_ranks, self._num_steps = line.num_ranks, num_steps
        self._begin = begin
        total = np.cumsum(line.own)
        starts = line.bounds[:-1]
        before = total[starts] - line.own[starts] if len(total) else np.zeros(line.num_ranks)
        #: Own time since the beginning, by moment.
        self._own = begin[line.rank] + total - before[line.rank]
        self._rank = line.rank
        self._waits = np.flatnonzero(line.kind == WAIT)
        self._points = np.flatnonzero(line.kind != WAIT)
        self._first = line.bounds
        wait = line.wait[self._waits]
        came, left = line.at[self._waits], line.until[self._waits]
        cause = waits.cause[wait]
        is_caused = cause >= 0
        cause_at = np.where(is_caused, line.at[line.of_call[cause]], came)
        # A clock that is a little wrong: it was over before the last one came.
        self._early = np.minimum(left - cause_at, 0.0)
        self._carried = left - np.maximum(came, cause_at + self._early)
        #: When each step ended, by rank (R x K), in the order of the points.
        self._ends = np.flatnonzero(line.kind[self._points] == END)
        self._rounds = self._order(line, waits, matched, wait, cause)
        self.recorded = self._lengths(self._run(np.zeros((len(line.at), 1))))[:, 0]

    def saved(self, too_long: Iterable[np.ndarray]) -> np.ndarray:
        """By what-if and step: how much shorter the step is with this taken away (each by moment)."""
        found = [np.zeros((0, self._num_steps))]
        rest = iter(too_long)
        while some := list(islice(rest, max(1, MAX_NUMBERS // max(1, len(self._rank))))):
            taken = np.empty((len(self._rank), len(some)))
            for number, one in enumerate(some):
                total = np.cumsum(one)
                starts = self._first[:-1]
                taken[:, number] = total - (total[starts] - one[starts])[self._rank]
            found.append((self.recorded[:, None] - self._lengths(self._run(taken))).T)
        return np.concatenate(found)

    def _lengths(self, ends: np.ndarray) -> np.ndarray:
        """By step and what-if: how long the job's step was."""
        mean = ends.reshape(self._num_ranks, self._num_steps, -1).mean(axis=0)
        lengths: np.ndarray = np.diff(mean, axis=0, prepend=np.full((1, mean.shape[1]), self._begin.mean()))
        return lengths

    def _run(self, taken: np.ndarray) -> np.ndarray:
        """Replay with so much of the own time before each moment taken away; return the ends of the steps."""
        own_at_wait = self._own[self._waits][:, None] - taken[self._waits]
        at = self._own[self._points][:, None] - taken[self._points]  # and what the rank has stood still, as it is known
        stood = np.zeros((self._num_ranks, taken.shape[1]))
        early, carried = self._early[:, None], self._carried[:, None]
        for now in self._rounds:
            if len(now.wait):
                came = own_at_wait[now.wait] + stood[now.rank]
                needed = came
                if len(now.bounds):
                    whole = np.maximum.reduceat(at[now.members], now.bounds, axis=0)
                    needed = np.where((now.collective >= 0)[:, None], whole[now.collective] + early[now.wait], came)
                one = now.call >= 0
                if one.any():
                    needed = needed.copy()
                    needed[one] = at[now.call[one]] + early[now.wait[one]]
                stood[now.rank] += np.maximum(came, needed) + carried[now.wait] - came
            at[now.points] += stood[now.of_rank]
        ends: np.ndarray = at[self._ends]
        return ends

    def _order(
        self, line: Timeline, waits: Waits, matched: Matched, wait: np.ndarray, cause: np.ndarray
    ) -> list[_Round]:
        num_ranks = self._num_ranks
        rank_of_wait = line.rank[self._waits]
        next_wait = np.searchsorted(rank_of_wait, np.arange(num_ranks + 1))
        last_wait = next_wait[1:].copy()
        next_wait = next_wait[:-1].copy()
        # The points between a wait and the next one of the rank; and how many waits of its rank are before a point.
        after = np.searchsorted(self._points, self._waits)
        until = np.append(after[1:], len(self._points))
        rank_ends = np.searchsorted(self._points, line.bounds)
        is_last = np.append(rank_of_wait[1:] != rank_of_wait[:-1], True)[: len(until)]
        until = np.where(is_last, rank_ends[rank_of_wait + 1], until)
        point_of_call = np.searchsorted(self._points, line.of_call)
        waits_before = np.searchsorted(self._waits, self._points[point_of_call]) if len(line.of_call) else point_of_call
        rank_of_call = line.rank[line.of_call] if len(line.of_call) else point_of_call

        collective = np.where((cause >= 0) & waits.needs_all[wait], matched.collective[waits.call[wait]], -1)
        single = np.where((cause >= 0) & ~waits.needs_all[wait], cause, -1)
        missing = np.diff(matched.bounds)
        call_of_point = line.call[self._points]
        in_collective = np.where(call_of_point >= 0, matched.collective[call_of_point], -1)

        rounds: list[_Round] = []
        nothing = np.zeros(0, dtype=np.int64)
        firsts = (
            np.where(next_wait < last_wait, self._waits[np.minimum(next_wait, len(self._waits) - 1)], line.bounds[1:])
            if len(self._waits)
            else line.bounds[1:]
        )
        points, of_rank = _ranges(rank_ends[:-1], np.searchsorted(self._points, firsts))
        rounds.append(_Round(nothing, nothing, nothing, nothing, nothing, nothing, points, of_rank))
        while True:
            seen = in_collective[points]
            np.subtract.at(missing, seen[seen >= 0], 1)
            rank = np.flatnonzero(next_wait < last_wait)
            if not len(rank):
                return rounds
            now = next_wait[rank]
            group, one = collective[now], single[now]
            known = (group < 0) | (missing[group] <= 0 if len(missing) else True)
            known &= (one < 0) | (waits_before[one] <= next_wait[rank_of_call[one]])
            if not known.any():
                # Clocks that are wrong: the one that was over first needed nobody.
                stuck = now[line.until[self._waits[now]].argmin()]
                self._early[stuck], self._carried[stuck] = (
                    0.0,
                    line.until[self._waits[stuck]] - line.at[self._waits[stuck]],
                )
                collective[stuck] = single[stuck] = -1
                points = nothing
                continue
            rank, now, group, one = rank[known], now[known], group[known], one[known]
            whole, place = np.unique(group, return_inverse=True)
            if len(whole) and whole[0] < 0:
                whole, place = whole[1:], place - 1
            begins, ends = matched.bounds[whole], matched.bounds[whole + 1]
            inside, _ = _ranges(begins, ends)
            members = point_of_call[matched.members[inside]]
            bounds = np.cumsum(ends - begins) - (ends - begins)
            next_wait[rank] += 1
            points, which = _ranges(after[now], until[now])
            rounds.append(
                _Round(
                    rank, now, members, bounds, place, np.where(one >= 0, point_of_call[one], -1), points, rank[which]
                )
            )


def _ranges(begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All numbers from each begin to its end, and of which range each is."""
    counts = np.maximum(ends - begins, 0)
    which = np.repeat(np.arange(len(begins)), counts)
    return np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts - begins, counts), which
