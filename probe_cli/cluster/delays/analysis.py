"""Delay analysis of a job, from the rows of its ranks to what each of them costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from . import alignment, blocking, charges, matching, timeline
from .calls import Calls, Names, flatten
from .charges import Charge
from .costs import Cost, cost
from .peers import Peers
from .replay import Replay, WhatIf
from .rows import RankRows, Who

__all__ = ["Analysis", "analyse"]

#: Single ranks, and sets of them of one kind, that are replayed at most; and how many single ones always are.
MAX_SINGLE, MAX_SETS, FEW = 16, 8, 4
#: Others are if this part of the time is at stake.
NOTABLE = 0.01
MAX_CHARGES = 1_000
#: So many times the calls that are analysed are looked at: ranks are not at one point.
MORE_CALLS = 1.3
#: A set explains no more than a part of it does, if the part costs so much of what the set costs, or if the rest is
#: less than so much of the time.
ALL_OF_IT, LITTLE = 0.6, 0.02
#: What the clock of a host may be wrong when nobody knows.
UNKNOWN_CLOCK_S = 1.0


@dataclass(frozen=True)
class _Graph:
    """What is needed to ask again."""

    peers: Peers
    replay: Replay
    #: By moment: what each rank takes too long, seen by itself.
    too_long: np.ndarray
    #: By moment: rank-seconds that others stood still for the own time before it, where a collective follows.
    awaited: np.ndarray

    def saved_by(self, sets: Iterable[Sequence[int]]) -> np.ndarray:
        """By set of ranks and step: what it would save if they were as the others."""
        return self.replay.saved(map(self._what_if, sets))

    def saved_by_all(self) -> np.ndarray:
        """By step: what it would save if nobody took longer than the median."""
        everybody = range(len(self.peers.own))
        saved: np.ndarray = self.replay.saved([self.peers.by_rank(self.peers.of_all(), everybody)])[0]
        return saved

    def saved_at_once(self, ranks: Sequence[int]) -> np.ndarray:
        """By step: what it would save if these ranks took no time for what all others stand still for."""
        num_others = max(1, len(self.peers.own) - len(ranks))
        taken = np.minimum(self.awaited / num_others, self.peers.own_of_moment)
        saved: np.ndarray = self.replay.saved([self.peers.by_rank(taken, ranks)])[0]
        return saved

    def taken_by(self, ranks: Sequence[int]) -> np.ndarray:
        """By step: what these ranks take too long, in whichever step it makes the others wait."""
        return self.peers.by_step(self._what_if(ranks))

    def _what_if(self, ranks: Sequence[int]) -> WhatIf:
        return self.peers.by_rank(self.too_long, ranks) if len(ranks) == 1 else self.peers.of_set(ranks)


@dataclass(frozen=True)
class Analysis:
    """What the steps that all ranks cover say. R ranks, K steps; without common steps K is 0 and all else empty."""

    who: tuple[Who, ...]
    #: The job's numbers of the steps, and how long each took.
    steps: np.ndarray
    lengths: np.ndarray
    #: What was added to the numbers that each rank has itself (R).
    shifts: np.ndarray
    #: The same number for ranks that make the same calls in most steps (R).
    work: np.ndarray
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
    _graph: _Graph | None = field(default=None, repr=False, compare=False)

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
        if self._graph is None:
            return cost(tuple(ranks), np.zeros(0), self.lengths, self.steps, kinds)
        return cost(tuple(ranks), self._graph.saved_by([tuple(ranks)])[0], self.lengths, self.steps, kinds)

    def taken_by(self, ranks: Collection[int]) -> np.ndarray:
        """Rank-seconds that these ranks take too long in each step. The job may wait for them only steps later: ranks
        that meet in every 10th step do."""
        return np.zeros(0) if self._graph is None else self._graph.taken_by(tuple(ranks))

    def cost_at_once(self, ranks: Collection[int]) -> Cost:
        """Return what the job would save if these ranks took no time at all for what all others stand still for: the
        limit of what work may cost that no other rank does."""
        saved = np.zeros(0) if self._graph is None else self._graph.saved_at_once(tuple(ranks))
        return cost(tuple(ranks), saved, self.lengths, self.steps, ["rank" if len(ranks) == 1 else "work"])

    def total(self) -> Cost:
        """What all differences between ranks that do the same work cost together, whoever has them."""
        everybody = range(len(self.who))
        if self._graph is None:
            return cost(everybody, np.zeros(0), self.lengths, self.steps, ["ranks"])
        return cost(everybody, self._graph.saved_by_all(), self.lengths, self.steps, ["ranks"])


def analyse(ranks: Sequence[RankRows], *, num_steps: int) -> Analysis:
    """Analyse the newest `num_steps` steps that the rows of all ranks cover."""
    ranks = _newest(ranks)
    calls, names = flatten(ranks)
    shift = alignment.shifts(calls, names, ranks)
    window = alignment.window(calls, ranks, shift, names.epoch, num_steps)
    num_steps = window.optimizer.shape[1]
    if not num_steps:
        return _nothing(ranks)
    calls, step, matched = _matched(calls, names, shift, window)
    whole = alignment.longest_whole(matched.partly(calls), step, window)
    if whole is not None:
        window = whole
        num_steps = window.optimizer.shape[1]
        calls, step, matched = _matched(calls, names, shift, window)
    clocks = np.array([UNKNOWN_CLOCK_S if own.uncertainty is None else own.uncertainty for own in ranks])
    host = np.unique([own.who.host for own in ranks], return_inverse=True)[1]
    waits = blocking.waits(calls, names, matched, window, step, clocks, host)
    line = timeline.timeline(calls, waits, window)
    begin = window.ends[:, 0]
    charged = charges.charge(line, waits, calls, begin, num_steps)
    sizes = np.zeros(len(names.groups), dtype=np.int64)
    np.maximum.at(sizes, calls.group[matched.members[matched.bounds[:-1]]], np.diff(matched.bounds))
    peers = Peers(line, calls, names, sizes, num_steps)
    replay = Replay(line, waits, matched, begin, num_steps)
    graph = _Graph(peers, replay, peers.of_each(), charged.by_moment)
    waited, transfer = _stood(line, waits, num_steps)
    candidates, scatter = _candidates(ranks, graph, charged.by_rank.sum(axis=1), replay.recorded, window.numbers)
    return Analysis(
        who=tuple(own.who for own in ranks),
        steps=window.numbers,
        lengths=replay.recorded,
        shifts=shift,
        work=_usual_work(peers.signature),
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
        _graph=graph,
    )


def _newest(ranks: Sequence[RankRows]) -> Sequence[RankRows]:
    """Without the oldest calls, where there are far more than are analysed together."""
    part = MORE_CALLS * alignment.MAX_CALLS / max(1, sum(len(own.calls["step"]) for own in ranks))
    if part >= 1:
        return ranks
    found = []
    for own in ranks:
        step = np.asarray(own.calls["step"])
        keep = step >= (np.quantile(step, 1 - part) if len(step) else 0)
        found.append(replace(own, calls={name: np.asarray(column)[keep] for name, column in own.calls.items()}))
    return found


def _matched(
    calls: Calls, names: Names, shift: np.ndarray, window: alignment.Window
) -> tuple[Calls, np.ndarray, matching.Matched]:
    """The calls in the window, the step of each, and which ones belong together."""
    step = alignment.steps_of(calls, shift, window)
    calls, step = calls.take(step >= 0), step[step >= 0]
    return calls, step, matching.match(calls, names, step)


def _nothing(ranks: Sequence[RankRows]) -> Analysis:
    none, by_rank = np.zeros(0), np.zeros((len(ranks), 0))
    who = tuple(own.who for own in ranks)
    each = np.zeros(len(ranks), np.int64)
    steps = np.zeros(0, np.int64)
    return Analysis(who, steps, none, each, each, by_rank, by_rank, by_rank, by_rank, (), 0.0, 0.0, 0.0, 1.0, ())


def _usual_work(signature: np.ndarray) -> np.ndarray:
    """Of each rank, what it does in most steps."""
    usual = []
    for row in signature:
        values, counts = np.unique(row, return_counts=True)
        usual.append(values[counts.argmax()])
    return np.unique(np.array(usual), return_inverse=True)[1]


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
    ranks: Sequence[RankRows], graph: _Graph, charged: np.ndarray, lengths: np.ndarray, steps: np.ndarray
) -> tuple[list[Cost], float]:
    """The sets of ranks that are worth a look, the best explanation first; and what could have been told from noise."""
    num_ranks, time = len(ranks), float(lengths.sum())
    # Parts of the time: nobody can cost more than what it takes too long, or than what others wait for it.
    too_long = np.bincount(graph.peers.rank_of_moment, graph.too_long, num_ranks) / time
    waited_for = charged / (num_ranks * time)
    sets: dict[tuple[int, ...], list[str]] = {}
    for order in (too_long, waited_for):
        leading = np.argsort(-order, kind="stable")[:MAX_SINGLE].tolist()
        for rank in leading[:FEW] + [rank for rank in leading[FEW:] if order[rank] > NOTABLE]:
            sets[(rank,)] = ["rank"]
    num_single = len(sets)
    for kind, chosen in _sets(ranks, graph.peers.signature, too_long, waited_for):
        kinds = sets.setdefault(chosen, [])
        if kind not in kinds:
            kinds.append(kind)
    found = [
        cost(chosen, saved, lengths, steps, kinds)
        for (chosen, kinds), saved in zip(sets.items(), graph.saved_by(sets), strict=True)
    ]
    visible = float(np.median([one.high - one.low for one in found[:num_single]]))
    return _explained(found), visible


def _sets(
    ranks: Sequence[RankRows], signature: np.ndarray, too_long: np.ndarray, waited_for: np.ndarray
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
        weight = {id(chosen): max(np.mean(too_long[chosen]), np.sum(waited_for[chosen])) for chosen in sets}
        for chosen in sorted(sets, key=lambda chosen: -weight[id(chosen)])[:MAX_SETS]:
            if weight[id(chosen)] > NOTABLE:
                yield wanted, tuple(chosen)
    for order in (too_long, waited_for):
        leading = np.argsort(-order, kind="stable").tolist()
        num_notable = min(int((order > NOTABLE).sum()), len(ranks) // 2)
        for num in (*range(2, MAX_SETS + 1), *(2**power for power in range(4, 12)), num_notable):
            if 2 <= num <= num_notable:
                yield "ranks", tuple(sorted(leading[:num]))


def _explained(found: Sequence[Cost]) -> list[Cost]:
    """Without those that a part of them explains, the most costly first."""
    kept: list[Cost] = []
    for one in sorted(found, key=lambda one: (len(one.ranks), -one.share)):
        parts = [part for part in kept if set(part.ranks) < set(one.ranks)]
        if not any(part.share >= ALL_OF_IT * one.share or one.share - part.share < LITTLE for part in parts):
            kept.append(one)
    return sorted(kept, key=lambda one: -one.share)
