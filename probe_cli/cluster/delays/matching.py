"""Whom each call depends on: the members of a collective, the send of a receive, the receive of a send."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .calls import Calls, Names

__all__ = ["Matched", "match"]

#: A receive may be in a step beside that of its send; the same one is preferred.
BESIDE = (0, 1, -1)
#: Another step has to leave less than this part unexplained, and so many seconds less.
CLEARLY, JITTER_S = 0.5, 5e-4
#: Clocks may be apart by so much, and such a part of the receives may seem to be early.
EARLY_S, MAX_EARLY = 1e-3, 0.05


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
    """The k-th send of a step from one rank to another in a group meets the k-th receive, of the same step or, where
    the two end their steps at different places of the loop, of one beside it: the same for all calls of a pair."""
    partner = np.full(len(calls), -1)
    at = np.flatnonzero(calls.peer >= 0)
    if not len(at):
        return partner
    is_send = names.is_op(calls.op[at], "send")
    num_ranks = int(max(calls.rank.max(), calls.peer.max())) + 1
    source = np.where(is_send, calls.rank[at], calls.peer[at])
    target = np.where(is_send, calls.peer[at], calls.rank[at])
    pairs, pair = np.unique((calls.group[at] * num_ranks + source) * num_ranks + target, return_inverse=True)
    found, unexplained = [], []
    for by in BESIDE:
        sends, receives = _met(calls, at, is_send, pair, np.where(is_send, step[at], step[at] + by))
        found.append((sends, receives))
        unexplained.append(_unexplained(calls, at[sends], at[receives], pair[sends], len(pairs)))
    best = np.argmin(unexplained, axis=0)
    worth = np.take_along_axis(np.array(unexplained), best[None], axis=0)[0] < CLEARLY * unexplained[0] - JITTER_S
    best = np.where(worth, best, 0)
    for number, (sends, receives) in enumerate(found):
        mine = best[pair[sends]] == number
        partner[at[sends[mine]]], partner[at[receives[mine]]] = at[receives[mine]], at[sends[mine]]
    return partner


def _met(
    calls: Calls, at: np.ndarray, is_send: np.ndarray, pair: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sends and the receives that they meet (indices into `at`), where `step` tells which ones belong together."""
    key = pair * (int(step.max()) + 3) + step + 1
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
    return sends[np.lexsort((send_number, key[sends]))], receives[np.lexsort((receive_number, key[receives]))]


def _unexplained(calls: Calls, sends: np.ndarray, receives: np.ndarray, pair: np.ndarray, num_pairs: int) -> np.ndarray:
    """By pair: how long a receive goes on, in the mean, when both it and its send have begun. Infinite where receives
    would have ended before their sends."""
    num = np.bincount(pair, minlength=num_pairs)
    began = np.maximum(calls.start[sends], calls.start[receives])
    left = calls.ended[receives] - began
    early = np.bincount(pair, calls.ended[receives] - calls.start[sends] < -EARLY_S, num_pairs)
    mean = np.bincount(pair, np.maximum(left, 0.0), num_pairs) / np.maximum(num, 1)
    return np.where((num == 0) | (early > MAX_EARLY * num), np.inf, mean)
