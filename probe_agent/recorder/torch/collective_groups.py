"""Sequence numbers of collectives in each process group, and the number of operations not called from Python.

A group reports the number of its operations without any communication. Operations without a call from Python were made
by C++; Flight Recorder has them. gloo also counts sends and receives, which differ between ranks; Flight Recorder has
both counts of its collectives, and none of its sends: those between its last collective and the attach are unknown
until it has another one. Runs on the recorder's thread, under 1 µs per group and tick.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from time import time_ns
from typing import Any

from . import loaded

__all__ = ["Group", "Groups", "in_order"]

#: Past numbers kept per group.
MAX_KEPT = 8_192


class Group:
    """One process group. `number` is its own count, `seq` the number that is the same on all its ranks."""

    def __init__(
        self, name: str, enqueued: int, base: int, since_ns: int, counts_p2p: bool, ranks: Sequence[int] = ()
    ) -> None:
        self.name = name
        #: Ranks in the job of its members, in group order.
        self.ranks = ranks
        #: Operations before this time are not recorded.
        self.since_ns = since_ns
        #: Last number used.
        self.enqueued = enqueued
        #: Whether the number of sends and receives among its numbers is known.
        self.is_anchored = not counts_p2p or base == 0
        #: Seqs that have a row; seqs that are not over, and whether they have a row for being late.
        self.written: set[int] = set()
        self.late: dict[int, bool] = {}
        self._base = self._looked_at = self._first = base
        self._called: set[int] = set()
        self._counts_p2p = counts_p2p
        self._anchor = self._offset = 0
        #: Sends and receives after the anchor, in order.
        self._p2p: list[int] = []
        self._seq_of: dict[int, int] = {}

    def called(self, number: int, is_p2p: bool) -> None:
        """Note the number of a call from Python; more than once while it goes on."""
        # Of a send that was made while Flight Recorder was read, the number is known only after `looked`.
        if is_p2p and self._counts_p2p and number > self._anchor:
            self._note_p2p(number)
        if number > self._base:
            self._called.add(number)

    def _note_p2p(self, number: int) -> None:
        at = bisect_left(self._p2p, number)
        if at < len(self._p2p) and self._p2p[at] == number:
            return
        self._p2p.insert(at, number)
        if len(self._p2p) > MAX_KEPT:
            older = self._p2p[: MAX_KEPT // 2]
            self._anchor, self._offset = older[-1], self._offset + len(older)
            del self._p2p[: len(older)]

    def num_unseen(self) -> int:
        """Return the number of operations without a finished call from Python, running calls included."""
        accounted = [number for number in self._called if number <= self.enqueued]
        num_unseen = self.enqueued - self._base - len(accounted)
        if num_unseen <= 0:
            self._base = self.enqueued
            self._called.difference_update(accounted)
        return num_unseen

    @property
    def num_since_look(self) -> int:
        """Operations since the last look at Flight Recorder, which keeps a limited number of entries."""
        return self.enqueued - self._looked_at

    def looked(self, had_called: bool) -> None:
        """Note that Flight Recorder has been read, and whether Python had called a collective, which it has if it has
        any: another look would tell no more."""
        self._base = self._looked_at = self.enqueued
        self._called = {number for number in self._called if number > self._base}
        self.is_anchored |= had_called or self._anchor >= self._first
        if len(self._seq_of) > MAX_KEPT:
            self._seq_of = dict(list(self._seq_of.items())[-MAX_KEPT // 2 :])

    def wrote(self, seq: int) -> None:
        """Note that this collective has a row."""
        self.written.add(seq)
        if len(self.written) > MAX_KEPT:
            self.written = set(sorted(self.written)[-MAX_KEPT // 2 :])

    def learn(self, number: int, seq: int) -> None:
        """Note both numbers of an entry of Flight Recorder, oldest entry first."""
        if not self._counts_p2p:
            return
        self._seq_of[number] = seq
        if number > self._anchor:
            self._anchor, self._offset = number, number - seq
            self._p2p = [other for other in self._p2p if other > number]

    def seq(self, number: int) -> int:
        """Return the number of a collective among the group's collectives."""
        found = self._seq_of.get(number)
        return number - self._offset - bisect_left(self._p2p, number) if found is None else found


def in_order(group_ranks: Mapping[int, int]) -> list[int]:
    """Return ranks in the job, ordered by their rank in the group."""
    return sorted(group_ranks, key=lambda rank: group_ranks[rank])


class Groups(dict[str, Group]):
    """The process groups of this process by name, destroyed groups included."""

    def __init__(self) -> None:
        super().__init__()
        self._refreshed_ns = 0

    def refresh(self) -> None:
        """Update the groups and their numbers of operations."""
        is_first, since_ns = not self._refreshed_ns, self._refreshed_ns or time_ns()
        self._refreshed_ns = time_ns()
        c10d: Any = loaded("torch.distributed.distributed_c10d")
        for process_group, name in list(c10d._world.pg_names.items()):
            try:
                enqueued = process_group._get_sequence_number_for_group()
            except RuntimeError:
                continue  # a backend that does not count
            group = self.get(name)
            if group is None or enqueued < group.enqueued:  # new, or another one of the same name
                base = enqueued if is_first else 0
                ranks = in_order(c10d._world.pg_group_ranks.get(process_group, {}))
                counts_p2p = process_group._get_backend_name() == "gloo"
                self[name] = Group(name, enqueued, base, since_ns, counts_p2p, ranks)
            else:
                group.enqueued = enqueued
