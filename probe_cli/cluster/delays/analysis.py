"""Delay analysis of a job, from the rows of its ranks to what each of them costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from probe_cli.cluster.compare.facts import Who

from . import alignment, blocking, charges, matching, timeline
from .calls import flatten
from .charges import Charge
from .costs import Cost, cost
from .peers import Peers
from .replay import Replay
from .rows import RankRows

__all__ = ["Analysis", "analyse"]

#: Single ranks, and sets of them of one kind, that are replayed.
MAX_SINGLE, MAX_SETS = 16, 16
MAX_CHARGES = 1_000
#: A set explains no more than a part of it does, if the part costs so much of what the set costs, or if the rest is
#: less than so much of the time.
ALL_OF_IT, LITTLE = 0.85, 0.02
#: What the clock of a host may be wrong when nobody knows.
UNKNOWN_CLOCK_S = 1.0


@dataclass(frozen=True)
class _WhatIf:
    """What is needed to ask again."""

    peers: Peers
    replay: Replay
    too_long: np.ndarray

    def saved_by(self, sets: Iterable[Sequence[int]]) -> np.ndarray:
        """By set of ranks and step: what it would save if they were as the others."""
        return self.replay.saved(map(self._of_set, sets))

    def _of_set(self, ranks: Sequence[int]) -> np.ndarray:
        if len(ranks) == 1:
            return np.where(self.peers.rank_of_moment == ranks[0], self.too_long, 0.0)
        return self.peers.of_set(ranks)


@dataclass(frozen=True)
class Analysis:
    """What the steps that all ranks cover say. R ranks, K steps; without common steps K is 0 and all else empty."""

    who: tuple[Who, ...]
    #: The job's numbers of the steps, and how long each took.
    steps: np.ndarray
    lengths: np.ndarray
    #: What each rank did itself, stood still for others, and stood still for data on their way, in each step (R x K).
    own: np.ndarray
    waited: np.ndarray
    transfer: np.ndarray
    #: Rank-seconds that other ranks stood still for this rank, by the step in which they did (R x K).
    charged: np.ndarray
    #: The biggest first.
    charges: Sequence[Charge]
    #: Rank-seconds of waits that data on their way caused, not a rank.
    charged_to_transfer_s: float
    #: Rank-seconds of waits that are charged to nobody: shorter than the clocks are known, or without a known cause.
    unknown_s: float
    #: Part of the calls in these steps that are known of all their ranks.
    covered: float
    #: The smallest share of the time that would have been told from noise in this job.
    smallest_visible: float
    #: What is worth a look, the best explanation first: sets of ranks, none of which is explained by a part of it.
    candidates: Sequence[Cost]
    _what_if: _WhatIf | None = field(default=None, repr=False, compare=False)

    @property
    def step_s(self) -> float:
        """How long a step takes: the median."""
        return float(np.median(self.lengths)) if len(self.lengths) else 0.0

    @property
    def time_s(self) -> float:
        """How long all of the steps took."""
        return float(self.lengths.sum())

    def cost_of(self, ranks: Collection[int]) -> Cost:
        """What these ranks (indices into `who`) cost together."""
        kinds = ["rank" if len(ranks) == 1 else "ranks"]
        if self._what_if is None:
            return cost(tuple(ranks), np.zeros(0), self.lengths, self.steps, kinds)
        return cost(tuple(ranks), self._what_if.saved_by([tuple(ranks)])[0], self.lengths, self.steps, kinds)

    def total(self) -> Cost:
        """What all differences between ranks that do the same work cost together, whoever has them."""
        everybody = range(len(self.who))
        if self._what_if is None:
            return cost(everybody, np.zeros(0), self.lengths, self.steps, ["ranks"])
        saved = self._what_if.replay.saved([self._what_if.peers.of_all()])[0]
        return cost(everybody, saved, self.lengths, self.steps, ["ranks"])


def analyse(ranks: Sequence[RankRows], *, num_steps: int) -> Analysis:
    """Analyse the newest `num_steps` steps that the rows of all ranks cover."""
    calls, names = flatten(ranks)
    shift = alignment.shifts(calls, names, ranks)
    window = alignment.window(calls, ranks, shift, names.epoch, num_steps)
    num_steps = window.optimizer.shape[1]
    if not num_steps:
        return _nothing(ranks)
    calls = calls.take(np.isin(calls.step + shift[calls.rank], window.numbers))
    step = np.searchsorted(window.numbers, calls.step + shift[calls.rank])
    matched = matching.match(calls, names, step)
    clocks = np.array([UNKNOWN_CLOCK_S if own.uncertainty is None else own.uncertainty for own in ranks])
    host = np.unique([own.who.host for own in ranks], return_inverse=True)[1]
    waits = blocking.waits(calls, names, matched, window, step, clocks, host)
    line = timeline.timeline(calls, waits, window)
    begin = window.ends[:, 0]
    charged = charges.charge(line, waits, calls, begin, num_steps)
    sizes = np.zeros(len(names.groups), dtype=np.int64)
    np.maximum.at(sizes, calls.group[matched.members[matched.bounds[:-1]]], np.diff(matched.bounds))
    peers = Peers(line, calls, sizes, num_steps)
    replay = Replay(line, waits, matched, begin, num_steps)
    what_if = _WhatIf(peers, replay, peers.of_each())
    waited, transfer = _stood(line, waits, num_steps)
    candidates, scatter = _candidates(ranks, what_if, charged.by_rank.sum(axis=1), replay.recorded, window.numbers)
    return Analysis(
        who=tuple(own.who for own in ranks),
        steps=window.numbers,
        lengths=replay.recorded,
        own=peers.own,
        waited=waited,
        transfer=transfer,
        charged=charged.by_rank,
        charges=charges.largest(line, charged, calls, names, step, MAX_CHARGES),
        charged_to_transfer_s=charged.transfer_s,
        unknown_s=charged.unknown_s,
        covered=matched.covered,
        smallest_visible=scatter,
        candidates=candidates,
        _what_if=what_if,
    )


def _nothing(ranks: Sequence[RankRows]) -> Analysis:
    none, by_rank = np.zeros(0), np.zeros((len(ranks), 0))
    who = tuple(own.who for own in ranks)
    return Analysis(who, np.zeros(0, np.int64), none, by_rank, by_rank, by_rank, by_rank, (), 0.0, 0.0, 0.0, 1.0, ())


def _stood(line: timeline.Timeline, waits: blocking.Waits, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """By rank and step: what was waited for somebody, and for data on their way."""
    moment = np.flatnonzero(line.wait >= 0)
    came, left = line.at[moment], line.until[moment]
    until = np.clip(waits.until[line.wait[moment]], came, left)
    key = line.rank[moment] * num_steps + line.step[moment]
    shape = line.num_ranks, num_steps
    waited, transfer = (np.bincount(key, part, shape[0] * shape[1]) for part in (until - came, left - until))
    return waited.reshape(shape), transfer.reshape(shape)


def _candidates(
    ranks: Sequence[RankRows], what_if: _WhatIf, charged: np.ndarray, lengths: np.ndarray, steps: np.ndarray
) -> tuple[list[Cost], float]:
    """The sets of ranks that are worth a look, the best explanation first; and what could have been told from noise."""
    num_ranks = len(ranks)
    too_long = np.bincount(what_if.peers.rank_of_moment, what_if.too_long, num_ranks)
    sets: dict[tuple[int, ...], list[str]] = {
        (rank,): ["rank"] for rank in _leading(num_ranks, MAX_SINGLE, charged, too_long)
    }
    num_single = len(sets)
    for kind, chosen in _sets(ranks, what_if.peers.signature, too_long, charged):
        sets.setdefault(chosen, []).append(kind)
    found = [
        cost(chosen, saved, lengths, steps, kinds)
        for (chosen, kinds), saved in zip(sets.items(), what_if.saved_by(sets), strict=True)
    ]
    visible = float(np.median([one.high - one.low for one in found[:num_single]]))
    return _explained(found), visible


def _leading(num_ranks: int, num: int, *orders: np.ndarray) -> list[int]:
    """The first ranks of each order, `num` at most of each."""
    return sorted({int(rank) for order in orders for rank in np.argsort(-order, kind="stable")[:num]})


def _sets(
    ranks: Sequence[RankRows], signature: np.ndarray, too_long: np.ndarray, charged: np.ndarray
) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Ranks with something in common, and those that lead by what they take too long, or are waited for.

    Of more than half of the ranks, the others would be the exception.
    """
    commons: dict[tuple[str, object], list[int]] = {}
    for at, own in enumerate(ranks):
        for name, value in (*own.roles.items(), ("host", own.who.host), ("work", int(signature[at, 0]))):
            commons.setdefault((name, value), []).append(at)
    for wanted in dict.fromkeys(kind for kind, _ in commons):
        sets = [chosen for (kind, _), chosen in commons.items() if kind == wanted and 1 < len(chosen) <= len(ranks) / 2]
        sets.sort(key=lambda chosen: -float(np.mean(too_long[chosen]) + np.mean(charged[chosen])))
        for chosen in sets[:MAX_SETS]:
            yield wanted, tuple(chosen)
    for order in (too_long, charged):
        leading = np.argsort(-order, kind="stable").tolist()
        for num in range(2, min(MAX_SETS // 2, len(ranks) // 2) + 1):
            yield "ranks", tuple(sorted(leading[:num]))


def _explained(found: Sequence[Cost]) -> list[Cost]:
    """Without those that a part of them explains, the most costly first."""
    kept: list[Cost] = []
    for one in sorted(found, key=lambda one: (len(one.ranks), -one.share)):
        parts = [part for part in kept if set(part.ranks) < set(one.ranks)]
        if not any(part.share >= ALL_OF_IT * one.share or one.share - part.share < LITTLE for part in parts):
            kept.append(one)
    return sorted(kept, key=lambda one: -one.share)
