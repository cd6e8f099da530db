"""Which step of one rank is which of another, and the steps that the rows of all ranks cover.

Optimizers that keep a count (Adam) give the number that all ranks share. Those that do not (plain SGD) are counted
from where the recorder came in, which is somewhere else on each rank. Collectives have the same number in their group
on all ranks: where two ranks called the same ones in steps of other numbers, one's steps are shifted to the other's.
Stages of a pipeline may have no collective in common: a receive ends after its send has begun, and soon after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .calls import Calls, Names
from .rows import RankRows

__all__ = ["Window", "longest_whole", "shifts", "steps_of", "window"]

#: So many common collectives, and such a part of them that agree, move a rank's steps.
MIN_VOTES, AGREE = 5, 0.6
#: By how many steps the ends of steps may mislead about which is which.
NEAR_STEPS = 2
#: Calls of a kind (made by Python, or by C++, whose rows come late) that are in such a part of the steps must be there.
REGULAR = 0.5
#: More calls than this are not analysed together; so many steps always are.
MAX_CALLS, ENOUGH_STEPS = 500_000, 20


@dataclass(frozen=True)
class Window:
    """The steps that all ranks cover, one after the other."""

    #: The numbers on the rank whose steps are not shifted.
    numbers: np.ndarray
    #: When each rank ended each of them; the first column is when it began the first (R x K + 1).
    ends: np.ndarray
    #: When each rank began the optimizer of each step: what C++ waits in backward is over by then (R x K).
    optimizer: np.ndarray


def shifts(calls: Calls, names: Names, ranks: Sequence[RankRows]) -> np.ndarray:
    """What to add to the step numbers of each rank."""
    shift = np.zeros(len(ranks), dtype=np.int64)
    is_settled = np.zeros(len(ranks), dtype=bool)
    step_of = np.full(calls.met.max(initial=0) + 1, -1)
    num_calls = np.bincount(calls.rank, minlength=len(ranks))
    together = calls.met >= 0
    while not is_settled.all():
        known = together & ~is_settled[calls.rank]
        known[known] = step_of[calls.met[known]] >= 0
        if known.any():
            rank = calls.rank[known]
            new = np.unique(rank)
            shift[new] = _elected(rank, step_of[calls.met[known]] - calls.step[known], len(ranks))[new]
        else:
            new, by = _linked(calls, names, ranks, shift, is_settled)
            if not len(new):
                new, by = np.array([np.where(is_settled, -1, num_calls).argmax()]), 0
            shift[new] = by
        is_settled[new] = True
        mine = together & np.isin(calls.rank, new)
        step_of[calls.met[mine]] = calls.step[mine] + shift[calls.rank[mine]]
    return shift


def _elected(rank: np.ndarray, votes: np.ndarray, num_ranks: int) -> np.ndarray:
    """The shift that most of a rank's collectives vote for; 0 where they are too few or do not agree."""
    low = votes.min()
    span = votes.max() - low + 1
    ballots, counts = np.unique(rank * span + votes - low, return_counts=True)
    order = np.argsort(counts, kind="stable")  # the last one of a rank to be written has most votes
    best, best_votes = np.zeros(num_ranks, dtype=np.int64), np.zeros(num_ranks, dtype=np.int64)
    best[ballots[order] // span] = ballots[order] % span + low
    best_votes[ballots[order] // span] = counts[order]
    all_votes = np.bincount(rank, minlength=num_ranks)
    return np.where((best_votes >= MIN_VOTES) & (best_votes >= AGREE * all_votes), best, 0)


def _linked(
    calls: Calls, names: Names, ranks: Sequence[RankRows], shift: np.ndarray, is_settled: np.ndarray
) -> tuple[np.ndarray, int]:
    """A rank that sends to one whose steps are known, or receives from it, and its shift."""
    links = (calls.peer >= 0) & ~is_settled[calls.rank]
    links[links] = is_settled[calls.peer[links]]
    if not links.any():
        return np.zeros(0, dtype=np.int64), 0
    pairs, counts = np.unique(calls.rank[links] * len(ranks) + calls.peer[links], return_counts=True)
    rank, peer = divmod(int(pairs[counts.argmax()]), len(ranks))
    guess = _by_time(ranks[rank], ranks[peer]) + int(shift[peer])
    send = names.is_op(calls.op, "send")
    gaps: dict[int, list[float]] = {by: [] for by in range(guess - NEAR_STEPS, guess + NEAR_STEPS + 1)}
    for sender, receiver in ((rank, peer), (peer, rank)):
        sent = _in_order(calls, send & (calls.rank == sender) & (calls.peer == receiver))
        got = _in_order(calls, ~send & (calls.rank == receiver) & (calls.peer == sender))
        for by, found in gaps.items():
            moved = int(shift[peer]) - by if receiver == rank else by - int(shift[peer])
            for (group, step, number), at in sent.items():
                to = got.get((group, step + moved, number))
                if to is not None:
                    found.append(float(calls.ended[to] - calls.start[at]))
    early = {by: np.mean(np.array(found) < -1e-3) for by, found in gaps.items() if found}
    if not early:
        return np.array([rank]), guess
    fits = [by for by in early if early[by] <= min(early.values()) + 0.05]
    return np.array([rank]), min(fits, key=lambda by: float(np.median(gaps[by])))


def _in_order(calls: Calls, which: np.ndarray) -> dict[tuple[int, int, int], int]:
    """Calls by group, step and their number in it."""
    found: dict[tuple[int, int, int], int] = {}
    numbers: dict[tuple[int, int], int] = {}
    for at in np.flatnonzero(which).tolist():
        group, step = int(calls.group[at]), int(calls.step[at])
        number = numbers.get((group, step), 0)
        numbers[group, step] = number + 1
        found[group, step, number] = at
    return found


def _by_time(rank: RankRows, other: RankRows) -> int:
    """The shift by which steps of the two end at about the same time."""
    ended = np.asarray(rank.steps["ended"]) - rank.offset
    others = np.sort(np.asarray(other.steps["ended"]) - other.offset)
    if not len(ended) or not len(others):
        return 0
    order = np.argsort(np.asarray(other.steps["ended"]), kind="stable")
    inside = (ended >= others[0]) & (ended <= others[-1])
    if not inside.any():
        return 0
    right = np.clip(np.searchsorted(others, ended[inside]), 1, max(1, len(others) - 1))
    nearest = np.where(
        ended[inside] - others[right - 1] < others[right % len(others)] - ended[inside], right - 1, right % len(others)
    )
    found = np.asarray(other.steps["number"])[order][nearest] - np.asarray(rank.steps["number"])[inside]
    return int(np.median(found))


def window(calls: Calls, ranks: Sequence[RankRows], shift: np.ndarray, epoch: float, num_steps: int) -> Window:
    """The newest steps, `num_steps` at most, that follow each other on all ranks and whose calls have rows."""
    rows = []
    common: np.ndarray | None = None
    for at, rank in enumerate(ranks):
        numbers, first = np.unique(np.asarray(rank.steps["number"]) + shift[at], return_index=True)
        rows.append((numbers, first))
        mine = slice(*np.searchsorted(calls.rank, [at, at + 1]))
        low, high = _covered(calls.step[mine] + shift[at], calls.by_cpp[mine])
        is_told = ~np.isin(numbers, np.asarray(rank.left_out, dtype=np.int64) + shift[at])
        inside = numbers[(numbers >= low) & (numbers <= high) & is_told]
        common = inside if common is None else np.intersect1d(common, inside, assume_unique=True)
    if common is None or not len(common):
        return Window(np.zeros(0, np.int64), np.zeros((len(ranks), 1)), np.zeros((len(ranks), 0)))
    follows = np.ones(len(common) - 1, dtype=bool)
    for numbers, _ in rows:
        follows &= np.diff(np.searchsorted(numbers, common)) == 1
    breaks = np.flatnonzero(~follows) + 1
    runs = np.split(common, breaks)
    longest = max(reversed(runs), key=len)[-num_steps:]
    inside = (calls.step + shift[calls.rank] >= longest[0]) & (calls.step + shift[calls.rank] <= longest[-1])
    longest = longest[-max(ENOUGH_STEPS, MAX_CALLS * len(longest) // max(1, int(inside.sum()))) :]
    ends = np.empty((len(ranks), len(longest) + 1))
    optimizer = np.empty((len(ranks), len(longest)))
    for at, (rank, (numbers, first)) in enumerate(zip(ranks, rows, strict=True)):
        where = np.searchsorted(numbers, longest)
        ended = np.asarray(rank.steps["ended"], dtype=float)[first] - rank.offset - epoch
        ends[at, 1:] = ended[where]
        began = ended[where[0]] - np.asarray(rank.steps["duration"])[first][where[0]]
        ends[at, 0] = ended[where[0] - 1] if where[0] > 0 else began
        optimizer[at] = ends[at, 1:] - np.nan_to_num(np.asarray(rank.steps["optimizer"], dtype=float)[first][where])
    return Window(longest, np.maximum.accumulate(ends, axis=1), optimizer)


def steps_of(calls: Calls, shift: np.ndarray, window: Window) -> np.ndarray:
    """The step of each call as an index into the window, -1 outside. In which one C++ made a call, the time tells: the
    recorder finds it later, and may be wrong by one."""
    number = calls.step + shift[calls.rank]
    found = np.where(np.isin(number, window.numbers), np.searchsorted(window.numbers, number), -1)
    num_steps = len(window.numbers)
    bounds = np.searchsorted(calls.rank, np.arange(len(window.ends) + 1))
    for rank, (first, last) in enumerate(pairwise(bounds.tolist())):
        mine = np.flatnonzero(calls.by_cpp[first:last]) + first
        at = np.searchsorted(window.ends[rank], calls.start[mine], side="right") - 1
        found[mine] = np.where(at < num_steps, at, -1)
    return found


def longest_whole(partly: np.ndarray, step: np.ndarray, window: Window) -> Window | None:
    """The longest run of steps in which all calls are known of all ranks, the newest of equal ones; None where that is
    all of them, or too few to do without the others."""
    num_steps = len(window.numbers)
    is_whole = np.bincount(step[partly], minlength=num_steps) == 0
    edges = np.flatnonzero(np.diff(is_whole.astype(np.int8), prepend=0, append=0))
    first, last = max(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True), key=_length, default=(0, 0))
    if last - first == num_steps or last - first < ENOUGH_STEPS:
        return None
    inside = slice(first, last)
    return Window(window.numbers[inside], window.ends[:, first : last + 1], window.optimizer[:, inside])


def _length(run: tuple[int, int]) -> tuple[int, int]:
    return run[1] - run[0], run[1]


def _covered(step: np.ndarray, by_cpp: np.ndarray) -> tuple[float, float]:
    """The first and the last step of one rank whose calls are all there; the ones beside them may be cut off."""
    low, high = -np.inf, np.inf
    for kind in (step[~by_cpp], step[by_cpp]):
        present = np.unique(kind)
        if len(present) > 2 and len(present) >= REGULAR * len(np.unique(step)):
            low, high = max(low, present[0] + 1), min(high, present[-1] - 1)
    return low, high
