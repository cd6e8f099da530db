"""Whom each call depends on: the members of a collective, the send of a receive, the receive of a send."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .calls import Calls, Names

__all__ = ["Matched", "match"]


@dataclass(frozen=True)
class Matched:
    """What belongs together among the calls of the window."""

    #: Calls of collectives that are known of all their ranks, those of a collective side by side, by their start.
    members: np.ndarray
    #: Where each collective begins in `members`, and, at the end, where the last one ends.
    bounds: np.ndarray
    #: The collective of each call (index into `bounds`), -1 for others.
    collective: np.ndarray
    #: The other end of each send and receive (index of the call), -1 where not known.
    partner: np.ndarray
    #: Part of the calls that have found all they belong to.
    covered: float

    @property
    def last(self) -> np.ndarray:
        """Of each collective, the call that was made last."""
        last: np.ndarray = self.members[self.bounds[1:] - 1]
        return last

    def partly(self, calls: Calls) -> np.ndarray:
        """Calls of collectives that are not known of all their ranks."""
        found: np.ndarray = (calls.met >= 0) & (self.collective < 0)
        return found


def match(calls: Calls, names: Names, step: np.ndarray) -> Matched:
    """Match the calls; `step` is the step of each in the window, the same on all ranks."""
    members, bounds, collective = _collectives(calls, names)
    partner = _pairs(calls, names, step)
    found = (collective >= 0) | (partner >= 0)
    return Matched(members, bounds, collective, partner, float(found.mean()) if len(calls) else 0.0)


def _collectives(calls: Calls, names: Names) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    together = np.flatnonzero(calls.met >= 0)
    collective = np.full(len(calls), -1)
    order = together[np.lexsort((calls.start[together], calls.met[together]))]
    met = calls.met[order]
    begins = np.flatnonzero(np.diff(met, prepend=-2))
    counts = np.diff(begins, append=len(met))
    group = calls.group[order[begins]]
    sizes = names.sizes.copy()
    seen = np.zeros(len(names.groups), dtype=np.int64)
    np.maximum.at(seen, group, counts)
    sizes[sizes == 0] = seen[sizes == 0]
    is_whole = counts >= np.maximum(sizes[group], 2)
    whole = np.repeat(is_whole, counts)
    bounds = np.concatenate([[0], np.cumsum(counts[is_whole])])
    collective[order[whole]] = np.repeat(np.arange(is_whole.sum()), counts[is_whole])
    return order[whole], bounds, collective


def _pairs(calls: Calls, names: Names, step: np.ndarray) -> np.ndarray:
    """The k-th send of a step from one rank to another in a group meets the k-th receive."""
    partner = np.full(len(calls), -1)
    at = np.flatnonzero(calls.peer >= 0)
    if not len(at):
        return partner
    is_send = names.is_op(calls.op[at], "send")
    num_ranks = int(max(calls.rank.max(), calls.peer.max())) + 1
    source = np.where(is_send, calls.rank[at], calls.peer[at])
    target = np.where(is_send, calls.peer[at], calls.rank[at])
    key = ((calls.group[at] * num_ranks + source) * num_ranks + target) * (int(step.max()) + 2) + step[at]
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for side in (is_send, ~is_send):
        mine = np.flatnonzero(side)
        mine = mine[np.lexsort((calls.start[at[mine]], key[mine]))]
        begins = np.flatnonzero(np.diff(key[mine], prepend=-1))
        counts = np.diff(begins, append=len(mine))
        number = np.arange(len(mine)) - np.repeat(begins, counts)
        found.append((mine, number))
    (sends, send_number), (receives, receive_number) = found
    # Where a step has more sends than receives of a pair, nobody can say which ones have met.
    values, inverse = np.unique(key, return_inverse=True)
    num_sends = np.bincount(inverse[sends], minlength=len(values))
    fits = num_sends == np.bincount(inverse[receives], minlength=len(values))
    sends, send_number = sends[fits[inverse[sends]]], send_number[fits[inverse[sends]]]
    receives, receive_number = receives[fits[inverse[receives]]], receive_number[fits[inverse[receives]]]
    sends = sends[np.lexsort((send_number, key[sends]))]
    receives = receives[np.lexsort((receive_number, key[receives]))]
    partner[at[sends]], partner[at[receives]] = at[receives], at[sends]
    return partner
