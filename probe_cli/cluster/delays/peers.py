"""How much longer a stretch of own time took than it would on the ranks that do the same work.

Ranks that make the same calls in a step are peers in it. A healthy rank still takes longer than the median of its
peers now and then, as they all do; so what it takes longer is held against what they do: the longest of its steps
against the longest of theirs. Of a rank that is as noisy as the others nothing is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from .calls import Calls, Names
from .timeline import END, Timeline

__all__ = ["Block", "Peers"]

#: With so many peers one of them does not move the median.
MANY = 32
#: And of so many, one part in this many does not.
FEW = 8


@dataclass(frozen=True)
class Block:
    """Ranks that made the same calls in each of some steps: n ranks, k steps, s stretches of own time."""

    ranks: np.ndarray
    moments: np.ndarray  # index of each stretch's moment in the timeline (n x k x s)
    own: np.ndarray  # n x k x s


class Peers:
    """The blocks of a timeline, and what each rank takes too long."""

    def __init__(self, line: Timeline, calls: Calls, names: Names, sizes: np.ndarray, num_steps: int) -> None:
        self._line = line
        self._num_steps = num_steps
        self.signature = self._signatures(calls, sizes)
        self._blocks = list(self._find_blocks())
        self._noise: dict[int, np.ndarray] = {}
        self._usual: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        #: Own time of each rank in each step.
        self.own = np.bincount(line.rank * num_steps + line.step, line.own, line.num_ranks * num_steps)
        self.own = self.own.reshape(line.num_ranks, num_steps)
        self.rank_of_moment, self.own_of_moment = line.rank, line.own
        # Before the first call of a step, after its last one, and between: where a micro-batch computes, after a
        # receive and before a send. A stretch between is long if it is at least a quarter of what a second of own
        # time typically lies in.
        starts, ends = self._begins, self._begins + self._counts - 1
        kinds = np.append(names.is_op(calls.op, "send") + 2 * names.is_op(calls.op, "recv"), 0)[line.call]
        first = np.where((self._counts > 1) & (kinds[starts] != 1), line.own[starts], 0.0)
        last = np.where((self._counts > 1) & (kinds[ends - 1] == 2), 0.0, line.own[ends])
        between = self.own.ravel() - first - last
        self._parts = np.stack([first, between, last], axis=1).reshape(*self.own.shape, 3)
        inside = line.own.copy()
        inside[starts] -= first
        inside[ends] -= last
        self._inside = inside
        per_step = line.rank * num_steps + line.step
        typical = np.bincount(per_step, inside**2, between.size) / np.maximum(between, 1e-12)
        self._is_long = (inside > 0) & (inside >= typical[per_step] / 4)
        self._num_long = np.bincount(per_step[self._is_long], minlength=between.size).reshape(self.own.shape)
        self._long = inside[self._is_long]  # those of one rank in one step are together
        self._first_long = (np.cumsum(self._num_long) - self._num_long.ravel()).reshape(self.own.shape)
        self._whole = Block(np.arange(line.num_ranks), np.zeros((0, 0, 0), np.int64), self.own[:, :, None])

    def of_each(self) -> np.ndarray:
        """By moment: what each rank takes too long there, seen by itself."""
        found = np.zeros(len(self._line.at))
        lone = np.zeros((self._line.num_ranks, self._num_steps), dtype=bool)
        for number, block in enumerate(self._blocks):
            if len(block.ranks) > 1:
                noise = self._noise_of(number, block)
                found[block.moments] = _too_long(block.own, _median_of_others(block.own), _median_of_others(noise))
            else:
                self._mark(lone, block)
        if lone.any() and self._line.num_ranks > 1:
            noise = self._noise_of(-1, self._whole)
            whole = self._whole.own
            self._spread(found, lone, _too_long(whole, _median_of_others(whole), _median_of_others(noise)))
        return found

    def of_all(self) -> np.ndarray:
        """By moment: what each rank takes longer than the median of all that do the same."""
        found = np.zeros(len(self._line.at))
        lone = np.zeros((self._line.num_ranks, self._num_steps), dtype=bool)
        for block in self._blocks:
            if len(block.ranks) > 1:
                found[block.moments] = np.maximum(block.own - np.median(block.own, axis=0), 0.0)
            else:
                self._mark(lone, block)
        if lone.any():
            whole = self._whole.own
            self._spread(found, lone, np.maximum(whole - np.median(whole, axis=0), 0.0))
        return found

    def of_set(self, ranks: Collection[int]) -> dict[int, np.ndarray]:
        """By rank, for each of its moments: what these ranks take too long, against those that are not of them."""
        chosen = np.zeros(self._line.num_ranks, dtype=bool)
        chosen[list(ranks)] = True
        found = np.zeros(len(self._line.at))
        lone = np.zeros((self._line.num_ranks, self._num_steps), dtype=bool)
        for number, block in enumerate(self._blocks):
            inside = chosen[block.ranks]
            if not inside.any():
                continue
            if inside.all():
                self._mark(lone, block)
                continue
            usual, noise = self._without(number, block, inside)
            found[block.moments[inside]] = _too_long(block.own[inside], usual, noise)
        lone[~chosen] = False
        if lone.any() and not chosen.all():
            usual, noise = self._without(-1, self._whole, chosen)
            self._spread(found, lone, _too_long(self._whole.own, usual, noise))
        return self.by_rank(found, ranks)

    def by_rank(self, found: np.ndarray, ranks: Collection[int]) -> dict[int, np.ndarray]:
        """What was found by moment, as a replay takes it."""
        bounds = self._line.bounds
        return {rank: found[bounds[rank] : bounds[rank + 1]] for rank in ranks}

    def by_step(self, found: Mapping[int, np.ndarray]) -> np.ndarray:
        """The sums by step of what was found by rank and moment."""
        sums = np.zeros(self._num_steps)
        for rank, taken in found.items():
            step = self._line.step[self._line.bounds[rank] : self._line.bounds[rank + 1]]
            sums += np.bincount(step, taken, self._num_steps)
        return sums

    def _without(self, number: int, block: Block, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How long the other ranks of a block take, and by how much they scatter: medians."""
        noise = self._noise_of(number, block)
        if len(inside) <= MANY or inside.sum() * FEW > len(inside):
            return np.median(block.own[~inside], axis=0), np.median(noise[~inside], axis=0)
        if number not in self._usual:
            self._usual[number] = np.median(block.own, axis=0), np.median(noise, axis=0)
        return self._usual[number]

    def _mark(self, lone: np.ndarray, block: Block) -> None:
        lone[block.ranks[:, None], self._line.step[block.moments[0, :, 0]]] = True

    def _spread(self, found: np.ndarray, lone: np.ndarray, too_long: np.ndarray) -> None:
        """Put what ranks without peers take too long in a step on its stretches, where they exceed the others'."""
        is_usual = ~lone | (too_long[:, :, 0] <= 0)
        for step in np.flatnonzero(~is_usual.all(axis=0)).tolist():
            others = _Others(self, np.flatnonzero(is_usual[:, step]), step)
            for rank in np.flatnonzero(~is_usual[:, step]).tolist():
                mine = self._stretches(rank, step)
                weights = self._weights(rank, mine, others)
                found[mine] = np.minimum(self._line.own[mine], too_long[rank, step, 0] * weights / weights.sum())

    def _weights(self, rank: int, mine: slice, others: _Others) -> np.ndarray:
        """By how much each stretch exceeds the others': before the first call of the step, after the last, or between;
        there the k-th long one is held against theirs, if they have as many (micro-batches, forward and backward)."""
        own = self._line.own[mine]
        if others.parts is None:
            return own
        exceeds = np.maximum(self._parts[rank, others.step] - others.parts, 0.0)
        if exceeds.sum() <= 0:
            return own
        between: np.ndarray = self._inside[mine].copy()
        usual = others.long(int(self._num_long[rank, others.step]))
        if usual is not None:
            is_long = self._is_long[mine]
            late = np.zeros_like(between)
            late[is_long] = np.maximum(between[is_long] - usual, 0.0)
            between = late if late.sum() > 0 else between
        between *= exceeds[1] / max(between.sum(), 1e-12)
        between[0] += exceeds[0]
        between[-1] += exceeds[2]
        return between

    def parts_of(self, ranks: np.ndarray, step: int) -> np.ndarray | None:
        """The median time of these ranks before their first call of a step, between, and after the last one."""
        return np.median(self._parts[ranks, step], axis=0) if len(ranks) else None

    def long_of(self, ranks: np.ndarray, step: int, num: int) -> np.ndarray | None:
        """The median time of each long stretch between, on those of these ranks that have `num` of them in a step."""
        alike = ranks[self._num_long[ranks, step] == num]
        if not len(alike):
            return None
        usual: np.ndarray = np.median(self._long[self._first_long[alike, step][:, None] + np.arange(num)], axis=0)
        return usual

    def _stretches(self, rank: int, step: int) -> slice:
        number = rank * self._num_steps + step
        return slice(self._begins[number], self._begins[number] + self._counts[number])

    def _noise_of(self, number: int, block: Block) -> np.ndarray:
        if number not in self._noise:
            self._noise[number] = _noise(block.own)
        return self._noise[number]

    def _signatures(self, calls: Calls, sizes: np.ndarray) -> np.ndarray:
        """By rank and step: a number for the moments in it, in their order."""
        line = self._line
        what = np.where(
            line.call >= 0, calls.op[line.call] * (int(sizes.max(initial=0)) + 1) + sizes[calls.group[line.call]], 0
        )
        what = (what * 3 + line.kind + 1).astype(np.uint64)
        ends = np.flatnonzero(line.kind == END)
        self._begins = np.concatenate([[0], ends[:-1] + 1])
        self._counts = ends - self._begins + 1
        position = np.arange(len(line.at)) - np.repeat(self._begins, self._counts)
        powers = np.cumprod(np.full(int(self._counts.max()), 6364136223846793005, dtype=np.uint64))
        mixed = (what * np.uint64(0x9E3779B97F4A7C15)) ^ (what << np.uint64(7))
        signature = np.add.reduceat(mixed * powers[position], self._begins)
        return signature.reshape(line.num_ranks, self._num_steps)

    def _find_blocks(self) -> Iterator[Block]:
        begins = self._begins.reshape(self.signature.shape)
        counts = self._counts.reshape(self.signature.shape)
        for value in np.unique(self.signature):
            has = self.signature == value
            sets, inverse = np.unique(has, axis=1, return_inverse=True)
            for number in range(sets.shape[1]):
                ranks = np.flatnonzero(sets[:, number])
                if not len(ranks):
                    continue
                steps = np.flatnonzero(inverse.ravel() == number)
                first = begins[np.ix_(ranks, steps)]
                moments = first[:, :, None] + np.arange(counts[ranks[0], steps[0]])
                yield Block(ranks, moments, self._line.own[moments])


class _Others:
    """Medians of one step on the ranks that others are held against, worked out once for all of these."""

    def __init__(self, peers: Peers, ranks: np.ndarray, step: int) -> None:
        self._peers, self._ranks = peers, ranks
        self._long: dict[int, np.ndarray | None] = {}
        self.step = step
        self.parts = peers.parts_of(ranks, step)

    def long(self, num: int) -> np.ndarray | None:
        """The median long stretches between of those that have `num` of them; None where nobody has."""
        if num not in self._long:
            self._long[num] = self._peers.long_of(self._ranks, self.step, num)
        return self._long[num]


def _too_long(own: np.ndarray, usual: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """What is left of `own - usual` when as much noise is taken off as the peers have: the most from the longest."""
    late = own - usual
    order = np.argsort(late, axis=1, kind="stable")
    allowed = np.empty_like(late)
    np.put_along_axis(allowed, order, np.broadcast_to(np.maximum(noise, 0.0), late.shape), axis=1)
    too_long: np.ndarray = np.clip(late - allowed, 0.0, own)
    return too_long


def _noise(own: np.ndarray) -> np.ndarray:
    """By how much each rank was late in its k-th best step, as far as that is noise: without what it always is.

    Seen against its peers, and against itself from step to step: the smaller one. The first is large where one of few
    peers is late now and then, the second where all of them have more to do in some steps.
    """
    late = own - _median_of_others(own)
    late = np.sort(late - np.median(late, axis=1, keepdims=True), axis=1)
    num_peers = len(own) - 1
    # The median of the peers has noise of its own.
    wider = np.sqrt(2.0 if num_peers == 1 else 1 + np.pi / 2 / num_peers)
    alone = np.sort((own - np.median(own, axis=1, keepdims=True)) * wider, axis=1)
    noise: np.ndarray = np.minimum(late, alone)
    return noise


def _median_of_others(values: np.ndarray) -> np.ndarray:
    """For each along the first axis, the median of all others."""
    num = len(values)
    if num > MANY:
        return np.broadcast_to(np.median(values, axis=0), values.shape)
    order = np.argsort(values, axis=0, kind="stable")
    ranked = np.take_along_axis(values, order, axis=0)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(num).reshape((-1,) + (1,) * (values.ndim - 1)), axis=0)
    low, high = (num - 2) // 2, (num - 1) // 2
    lower = np.where(place <= low, ranked[low + 1], ranked[low])
    upper = np.where(place <= high, ranked[min(high + 1, num - 1)], ranked[high])
    median: np.ndarray = (lower + upper) / 2
    return median
