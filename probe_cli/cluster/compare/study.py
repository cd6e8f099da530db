"""The ranks' rows on one clock, and the analysis of them: what every look at the times of steps begins with."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from probe_cli.cluster.delays.analysis import Analysis, analyse
from probe_cli.cluster.delays.charges import Slot
from probe_cli.cluster.delays.costs import Cost, costly, resample
from probe_cli.cluster.delays.rows import CALLS, STEPS, RankRows

from .facts import Facts, Who, one_clock_a_host, with_borrowed_steps, with_recent
from .phases import PHASES, Longer, longer, own_phases
from .rounds import in_rounds

__all__ = ["MIN_STEPS", "Study", "study"]

#: Fewer steps in common than this, and nothing is said.
MIN_STEPS = 10
#: A rank of whose calls so little is known, beside what is known of others, cannot be compared.
MIN_WITH_CALLS = 0.5
#: Ranks whose cost is worked out one by one: those that the others waited for most.
MAX_SINGLE = 16
#: Peers that a rank's phases are compared with.
MAX_PEERS = 64
#: A peer is a rival when so much of what is charged to a rank is charged to that one at the same places.
RIVAL = 0.5
#: A cost that is in so many of the steps is there in all of them but for noise.
STEADY = 0.5
#: Steps in a block of stalls that are taken for one.
MIN_BLOCK = 4
#: A slot is worth words when it has this part of what is charged to a rank, and the rank has more of them.
MOST_OF_SLOT, MANY_SLOTS = 0.6, 3
#: A cost that rotates is said to be in a phase that has this part of it.
MOST_OF_PHASE = 0.5


@dataclass(frozen=True)
class Study:
    """The analysis, and the facts that it is of."""

    #: All that were asked for.
    told: tuple[Facts, ...]
    #: Those that were compared, in the order of `analysis.who`, with calls of a moment ago.
    facts: tuple[Facts, ...]
    analysis: Analysis
    #: How many were left out since their calls are not known.
    num_silent: int = 0
    #: What is to be known about those that were not compared.
    notes: tuple[str, ...] = ()

    def numbers(self, cost: Cost) -> list[int]:
        """The ranks of a cost."""
        return [self.facts[at].who.rank for at in cost.ranks]

    @cached_property
    def top_ranks(self) -> tuple[int, ...]:
        """Indices of the ranks that the others waited for most."""
        return self.most_waited_for(MAX_SINGLE)

    def most_waited_for(self, num: int) -> tuple[int, ...]:
        """Indices of so many of the ranks that the others waited for most."""
        charged = self.analysis.charged.sum(axis=1)
        return tuple(int(at) for at in np.argsort(-charged, kind="stable")[:num])

    def by_suspicion(self, ranks: Sequence[int]) -> list[int]:
        """These ranks (indices) in order: first those that take nothing too long, or that nobody waits for."""
        charged = self.analysis.charged.sum(axis=1)[list(ranks)]
        taken = np.array([self.analysis.taken_by([at]).sum() for at in ranks])
        suspicion = np.minimum(charged / max(charged.max(), 1e-12), taken / max(taken.max(), 1e-12))
        return [ranks[at] for at in np.argsort(suspicion, kind="stable").tolist()]

    @cached_property
    def most_costly(self) -> Cost:
        """The single rank that costs most."""
        return max((self.cost_of([at]) for at in self.top_ranks), key=lambda cost: cost.share)

    @cached_property
    def _costs(self) -> dict[tuple[int, ...], Cost]:
        return {cost.ranks: cost for cost in self.analysis.candidates}

    def cost_of(self, ranks: Sequence[int]) -> Cost:
        """What these ranks (indices) cost together."""
        key = tuple(sorted(ranks))
        if key not in self._costs:
            self._costs[key] = self.analysis.cost_of(key)
        return self._costs[key]

    @cached_property
    def _own(self) -> dict[int, dict[str, np.ndarray]]:
        return {}

    def own(self, at: int) -> dict[str, np.ndarray]:
        """The own time of one rank by phase, in each step."""
        if at not in self._own:
            analysis = self.analysis
            stood_still = analysis.waited[at] + analysis.transfer[at]
            numbers = analysis.steps - analysis.shifts[at]
            self._own[at] = own_phases(self.facts[at], numbers, stood_still)
        return self._own[at]

    def peers(self, cost: Cost) -> list[int]:
        """The peers of its ranks."""
        return self.peers_of(cost.ranks)

    def peers_of(self, ranks: Collection[int]) -> list[int]:
        """Ranks that do the same work and are not among `ranks`; all others where there are none."""
        work = self.analysis.work
        others = np.setdiff1d(np.arange(len(self.facts)), list(ranks))
        same = others[np.isin(work[others], work[list(ranks)])]
        found: list[int] = (same if len(same) else others)[:MAX_PEERS].tolist()
        return found

    def span(self, who: Who) -> tuple[float, float]:
        """When the steps that were compared began and ended, on our clock, by the rows of one rank."""
        at = self.analysis.who.index(who)
        fact = self.facts[at]
        numbers = self.analysis.steps - self.analysis.shifts[at]
        wanted = np.isin(fact.steps["number"], numbers)
        ended = fact.steps["ended"][wanted].astype(float) - fact.offset
        return float(ended.min() - fact.steps["duration"][wanted].max()), float(ended.max())

    @cached_property
    def _charged_at(self) -> dict[int, dict[Slot, float]]:
        """For each rank: between which collectives the others waited for it, and how long in all."""
        found: dict[int, dict[Slot, float]] = {}
        for charge in self.analysis.charges:
            of_rank = found.setdefault(charge.rank, {})
            of_rank[charge.slot] = of_rank.get(charge.slot, 0.0) + charge.seconds
        return found

    def rival(self, cost: Cost) -> int | None:
        """Of the peers for which the others wait at the same places as for one of its ranks, and much the same time,
        the one that they wait for longest."""
        mine = [self._charged_at.get(at, {}) for at in cost.ranks[:MAX_PEERS]]
        found: dict[int, float] = {}
        for peer in self.peers(cost):
            theirs = self._charged_at.get(peer, {})
            alike = [sum(min(one, theirs.get(slot, 0.0)) for slot, one in of.items()) for of in mine]
            if any(part >= RIVAL * sum(of.values()) > 0 for part, of in zip(alike, mine, strict=True)):
                found[peer] = sum(theirs.values())
        return max(found, key=lambda peer: found[peer], default=None)

    def sureness_over(self, rival: int, cost: Cost) -> list[float]:
        """For each rank of `cost`, by how many standard errors its own time exceeds that of this one."""
        return [self._sureness([at], [rival], cost) for at in cost.ranks]

    def apart(self) -> list[int]:
        """The ranks that make other calls than the rest, who all make the same ones (a parameter server, the leaders of
        hosts); none where there are more kinds of work, as in a pipeline, or as many of one as of the other."""
        kinds, counts = np.unique(self.analysis.work, return_counts=True)
        if len(kinds) != 2 or counts.min() * 2 >= counts.sum():
            return []
        few = kinds[counts.argmin()]
        return [at for at, work in enumerate(self.analysis.work.tolist()) if work == few]

    def sureness(self, cost: Cost) -> list[float]:
        """For each rank of `cost`, by how many standard errors its own time exceeds that of its peers: as many as are
        as unlikely in a normal distribution."""
        peers = self.peers(cost)
        return [self._sureness([at], peers, cost) for at in cost.ranks]

    def sureness_together(self, cost: Cost) -> float:
        """The same of all of them together."""
        return self._sureness(list(cost.ranks), self.peers(cost), cost)

    def chance_of_longest(self, at: int, peers: Sequence[int]) -> float:
        """How likely it is that one of these ranks has the longest stretches of own time as often as the rank `at` has
        them, if each of them has them as often as any other.

        Counted are the steps that hold half of what anybody took longer than the others. Stalls that follow each other
        have one cause, so a block of steps counts once, for the rank that has most of it.
        """
        ranks = [at, *peers]
        own = self.analysis.own[ranks]
        extra = own - np.array([np.median(np.delete(own, number, axis=0), axis=0) for number in range(len(ranks))])
        longest = extra.max(axis=0)
        num_steps = len(longest)
        order = np.argsort(-longest, kind="stable")
        total = np.cumsum(longest[order])
        counted = order[: int(np.searchsorted(total, total[-1] / 2)) + 1]
        block = counted // max(MIN_BLOCK, round(num_steps**0.5 / 2))
        by_block = np.zeros((len(ranks), int(block.max()) + 1))
        np.add.at(by_block, (extra.argmax(axis=0)[counted], block), longest[counted])
        by_block = by_block[:, by_block.any(axis=0)]
        num, hits = by_block.shape[1], int((by_block.argmax(axis=0) == 0).sum())
        each = 1 / len(ranks)
        tail = sum(math.comb(num, k) * each**k * (1 - each) ** (num - k) for k in range(hits, num + 1))
        return min(1.0, len(ranks) * tail)

    def _sureness(self, ranks: list[int], others: list[int], cost: Cost) -> float:
        own = self.analysis.own
        mine, peers = own[ranks].mean(axis=0), own[others]
        in_mean = _deviation(mine - peers.mean(axis=0), self.analysis.lengths, cost.period or 1)
        if cost.frequency < STEADY:
            return in_mean
        # One long stall of a peer hides in the mean what is there in every step. Which of two is longer tells it.
        more_often = np.sign(mine - np.median(peers, axis=0))
        return max(in_mean, _deviation(more_often, np.ones(len(mine)), 1))

    def with_kind(self, cost: Cost) -> Cost:
        """The same, with what its ranks have in common where these are all that have it."""
        if cost.kind != "ranks":
            return cost
        hosts = {fact.who.host for fact in self.facts}
        for host in hosts if len(hosts) > 1 else ():
            if cost.ranks == tuple(at for at, fact in enumerate(self.facts) if fact.who.host == host):
                return replace(cost, kinds=("host",))
        first = self.facts[cost.ranks[0]].roles
        for name, value in first.items():
            if cost.ranks == tuple(at for at, fact in enumerate(self.facts) if fact.roles.get(name) == value):
                return replace(cost, kinds=(name,))
        return cost

    def longer(self, cost: Cost) -> Longer:
        """In what the ranks of `cost` take longer than their peers, in the steps in which they do: ranks that meet in
        every 10th step may take longer in each of them."""
        late = costly(self.analysis.taken_by(cost.ranks))
        each = float(cost.per_step.sum() / late.sum()) if late.any() else 0.0
        peers = self.peers(cost)
        own = {at: self.own(at) for at in (*cost.ranks[:MAX_PEERS], *peers)}
        return longer(own, cost.ranks[:MAX_PEERS], peers, late, each)

    def slot(self, cost: Cost, num_slots: int = MANY_SLOTS) -> str | None:
        """Between which collectives the ranks of `cost` took what they cost; None where there are fewer than
        `num_slots`, so that it tells nothing, or several share it."""
        seconds: dict[str, float] = {}
        for charge in self.analysis.charges:
            if charge.rank in cost.ranks:
                name = charge.slot.group
                group = self.facts[charge.rank].groups.get(name)
                slot = str(replace(charge.slot, group=(group.desc if group is not None else "") or name))
                seconds[slot] = seconds.get(slot, 0.0) + charge.seconds
        if len(seconds) < num_slots:
            return None
        top = max(seconds, key=lambda slot: seconds[slot])
        return top if seconds[top] >= MOST_OF_SLOT * sum(seconds.values()) else None

    def rotating_phase(self) -> str | None:
        """The phase that has most of what ranks take longer than the median of all, now one and now another."""
        extra: dict[str, float] = {}
        ranks = self.top_ranks
        for name in PHASES:
            times = np.nan_to_num(np.array([self.own(at)[name] for at in ranks]))
            extra[name] = float(np.maximum(times - np.median(times, axis=0), 0.0).sum())
        top = max(extra, key=lambda name: extra[name])
        return top if extra[top] >= MOST_OF_PHASE * sum(extra.values()) > 0 else None


def _deviation(per_step: np.ndarray, weights: np.ndarray, period: int) -> float:
    """By how many standard errors the mean is above 0, as a normal deviation."""
    shares = resample(per_step, weights, period)
    if not len(shares):
        return 0.0
    num = len(per_step)
    # The blocks overlap, so they tell more than as many apart would.
    num_blocks = 2 * num / min(num, max(round(num**0.5), period))
    return _normal(float(shares.mean()) / max(float(shares.std()), 0.5 / num), max(1.0, num_blocks - 1))


def _normal(t: float, freedom: float) -> float:
    """The deviation in a normal distribution that is about as unlikely as `t` in Student's, which few blocks make."""
    if not t:
        return 0.0
    shrunk = math.sqrt(math.log1p(t * t / freedom) * freedom)
    return math.copysign(shrunk * (8 * freedom + 1) / (8 * freedom + 3), t)


def study(told: Sequence[Facts], num_steps: int) -> Study:
    """The analysis of the newest `num_steps` steps that the ranks have in common."""
    own = one_clock_a_host(told)
    facts = [with_recent(fact) for fact in with_borrowed_steps(own, MIN_STEPS)]
    compared, notes = [], []
    for fact, before in zip(facts, own, strict=True):
        if fact.steps is not before.steps:
            notes.append(f"{fact.who} ends no steps of its own: those of another rank are taken for it")
    with_steps, facts = facts, in_rounds(facts, MIN_STEPS)
    if any(fact is not before for fact, before in zip(facts, with_steps, strict=True)):
        notes.append(
            "ranks take different numbers of steps between two meetings: what lies between two is called a step"
        )
    for fact in facts:
        num = len(np.unique(fact.steps["number"])) if fact.steps else 0
        if num >= MIN_STEPS:
            compared.append(fact)
        else:
            notes.append(f"{fact.who} is not compared: it has recorded {f'{num} steps' if num else 'no step'}")
    known = [_part_with_calls(fact, num_steps) for fact in compared]
    silent = [
        fact.who for fact, part in zip(compared, known, strict=True) if part < MIN_WITH_CALLS * max(known, default=0.0)
    ]
    # What such a rank waits would count as its own time.
    notes += [f"{who} is not compared: its collectives in these steps are not known" for who in silent]
    compared = [fact for fact in compared if fact.who not in silent]
    if not compared:
        compared, notes = facts, []
    is_told = any(fact.calls for fact in compared)  # without a call no wait is known
    rows = [rows_of(fact if is_told else replace(fact, steps={})) for fact in compared]
    analysis = analyse(rows, num_steps=num_steps)
    for fact in compared if len(analysis.steps) < num_steps else ():
        if traced := int(_traced(fact).sum()):
            notes.append(
                f"{traced} steps of {fact.who} are not compared: Probe traced it in them (memory --leaks, profile or"
                " nan --hunt), which takes time; compare again when newer steps are there"
            )
    return Study(tuple(facts), tuple(compared), analysis, len(silent), tuple(notes))


def _part_with_calls(fact: Facts, num_steps: int) -> float:
    """In which part of its newest steps the rank is known to have called anything."""
    newest = np.unique(fact.steps["number"])[-num_steps:]
    return float(np.isin(newest, fact.calls["step"]).mean()) if fact.calls else 0.0


def _traced(fact: Facts) -> np.ndarray:
    """Return for each of its steps whether a question traced the rank, so that Probe itself may have held it up."""
    num = len(fact.steps["number"]) if fact.steps else 0
    return np.asarray(fact.steps.get("traced", np.zeros(num, dtype=bool)))


def rows_of(fact: Facts) -> RankRows:
    """The columns of `fact` that the analysis takes; steps in which Probe traced it are left out."""
    return RankRows(
        who=fact.who,
        steps={name: fact.steps.get(name, np.zeros(0)) for name in STEPS},
        calls={name: fact.calls.get(name, np.zeros(0)) for name in CALLS},
        roles=fact.roles,
        members={name: group.ranks for name, group in fact.groups.items() if group.ranks},
        offset=fact.offset,
        uncertainty=fact.clock.uncertainty if fact.clock is not None else None,
        left_out=fact.steps["number"][_traced(fact)] if fact.steps else (),
    )
