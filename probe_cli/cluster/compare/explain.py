"""Questions after a first comparison: a second look at a job that stands still, and evidence about a named rank.

Runs in the CLI on its event loop. A rank that does not answer here costs its evidence, and is no failure of the
comparison.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import TypeVar

from probe_agent.wire import CpuProfileRequest, TargetInfo
from probe_cli.client import Client, Data
from probe_cli.cluster.delays.costs import Cost
from probe_cli.cluster.fanout import Answers, ask
from probe_cli.cluster.folded import job_lines
from probe_cli.cluster.hang import verdict as hang
from probe_cli.cluster.hang.closer import looked_closer
from probe_cli.cluster.hang.looks import Look, look
from probe_cli.endpoint import Endpoint
from probe_cli.messages import remark

from .by.module import slow_module
from .comparison import Comparison, Verdict
from .evidence import NEEDS, beside, slow_line
from .facts import Facts, Who, standstill_s
from .gather import question
from .named import Named, named
from .questions import Extent
from .study import Study
from .verdict import judge

__all__ = ["GRACE_S", "Asked", "explained", "hung"]

T = TypeVar("T")

#: Every rank that was asked: its endpoint, and what its host server says of it.
Asked = Mapping[Who, tuple[Endpoint, TargetInfo]]
#: A rank is asked a few questions, one after the other, and for its clock.
GRACE_S = 5.0
#: Ranks that are asked whether their threads wait for a CPU.
MAX_ASKED = 64
#: Named costs, ranks of each, and peers whose tables are looked at.
MAX_NAMED, MAX_PEERS = 4, 4
#: What happens now and then is watched for this many of its periods, but no longer than this.
NUM_PERIODS, MAX_WATCH_S = 2, 10
#: Stacks a second while a rank is watched; py-spy starts and ends within the grace.
WATCH_RATE, WATCH_GRACE_S = 50, 30.0
#: Between the two looks at a job that may hang.
BETWEEN_S = 2.0


async def hung(facts: Sequence[Facts], asked: Asked, now: float, timeout_s: float) -> Comparison | None:
    """The comparison of a job that hangs: two looks, a moment apart, before that is said. Of one that may go on, it is
    remarked what it waits for."""
    if any(fact.steps for fact in facts) and standstill_s(facts, now) is None:
        return None
    rank_at = {endpoint: who.rank for who, (endpoint, _) in asked.items()}
    targets = {who.rank: target for who, (_, target) in asked.items()}

    async def looks() -> dict[int, Look]:
        answers = await _ask(tuple(rank_at), look(timeout_s), timeout_s + GRACE_S)
        return {rank_at[endpoint]: seen for endpoint, seen in answers.answered}

    before = await looks()
    await asyncio.sleep(BETWEEN_S)
    after = await looks()
    world_size = max(target.world_size for target in targets.values())
    missing = [rank for rank in range(world_size) if rank not in after]

    async def ask_ranks(question: Callable[[Client], Awaitable[T]], ranks: Sequence[int]) -> dict[int, T]:
        these = tuple(endpoint for endpoint, rank in rank_at.items() if rank in ranks)
        answers = await _ask(these, question, timeout_s + GRACE_S)
        return {rank_at[endpoint]: told for endpoint, told in answers.answered}

    judged = partial(hang.judge, targets, missing=missing)
    verdict = await looked_closer(judged, before, after, ask_ranks, between_s=BETWEEN_S, timeout_s=timeout_s)
    if verdict.may_go_on:
        remark(verdict.sentence)
    if verdict.state is not hang.State.HANGS:
        return None
    where = verdict.stops[0].wait if verdict.stops else None
    return Comparison(
        Verdict(
            "hangs",
            verdict.sentence,
            ranks=verdict.ranks,
            where=f"{where.op} {where.seq} of group {where.group.name}" if where is not None else None,
            value=verdict.stands_s,
            evidence="two looks",
        ),
        (),
        (),
        (),
    )


async def explained(
    comparison: Comparison, study: Study, asked: Asked, extent: Extent, watch_s: int, timeout_s: float
) -> Comparison:
    """Return the same with what other tables tell of the ranks that are named, or of the one that costs most, and with
    the line of the first, from stacks sampled while it works."""
    suspects = [one.cost for one in named(study)[:MAX_NAMED]] or [study.most_costly]
    told = await _tables(suspects, study, asked, extent, timeout_s)
    others = [who for at in study.most_waited_for(MAX_ASKED) if (who := study.facts[at].who) not in told]
    told |= await _told(others, ("samples",), study, asked, extent, timeout_s)
    found = [_with_tables(one, study, told) for one in named(study, told)]
    blamed = [one for one in found if one.busy_host is None]
    notes: list[str] = []
    if watch_s and blamed:
        watched = [study.facts[blamed[0].cost.ranks[0]].who, *_peers(study, blamed[0].cost)]
        alive = [who for who in watched if asked[who][1].alive]
        if alive[:1] == watched[:1] and alive[1:]:
            blamed[0], notes = await _with_line(blamed[0], study, [asked[who][0] for who in alive[:2]], watch_s)
    return replace(comparison, verdict=judge(study, blamed or found, told), notes=(*comparison.notes, *notes))


def _peers(study: Study, cost: Cost) -> list[Who]:
    """Some peers of these ranks, those on their hosts first."""
    hosts = {study.facts[at].who.host for at in cost.ranks}
    peers = [study.facts[at].who for at in study.peers(cost)]
    return sorted(peers, key=lambda who: who.host not in hosts)[:MAX_PEERS]


async def _tables(
    suspects: Sequence[Cost], study: Study, asked: Asked, extent: Extent, timeout_s: float
) -> dict[Who, Facts]:
    """What other tables tell of these ranks and of some of their peers."""
    wanted = [
        who
        for cost in suspects
        for who in (*(study.facts[at].who for at in cost.ranks[:MAX_PEERS]), *_peers(study, cost))
    ]
    return await _told(wanted, NEEDS, study, asked, extent, timeout_s)


async def _told(
    wanted: Sequence[Who], needs: Sequence[str], study: Study, asked: Asked, extent: Extent, timeout_s: float
) -> dict[Who, Facts]:
    if not wanted:
        return {}
    endpoints = {asked[who][0]: who for who in wanted}
    answers = await _ask(tuple(endpoints), question(needs, extent, timeout_s), timeout_s + GRACE_S)
    known = {fact.who: fact for fact in study.facts}
    return {
        who: replace(fact, who=who, clock=known[who].clock, steps=known[who].steps)
        for endpoint, fact in answers.answered
        for who in (endpoints[endpoint],)
    }


def _with_tables(one: Named, study: Study, told: Mapping[Who, Facts]) -> Named:
    suspect = study.facts[one.cost.ranks[0]].who
    if suspect not in told:
        return one
    peers = [told[who] for who in _peers(study, one.cost) if who in told]
    since, until = study.span(suspect)
    return replace(
        one,
        beside=beside(told[suspect], peers, since, until, starved=one.longer.phase == "all phases"),
        module=slow_module([told[suspect], *peers], suspect),
    )


async def _with_line(
    first: Named, study: Study, rank_and_peer: Sequence[Endpoint], watch_s: int
) -> tuple[Named, list[str]]:
    """Samples the stacks of the rank and of a peer, from outside: neither is stopped."""
    if first.cost.period is not None:
        periods = NUM_PERIODS * first.cost.period * study.analysis.step_s
        watch_s = max(watch_s, ceil(min(MAX_WATCH_S, periods)))
    wanted = CpuProfileRequest(watch_s, WATCH_RATE, True, "folded")

    async def sampled(client: Client) -> Data:
        return await client.data("/v1/profile/cpu", wanted)

    answers = await _ask(rank_and_peer, sampled, watch_s + WATCH_GRACE_S)
    if answers.unanswered:
        endpoint, error = answers.unanswered[0]
        return first, [f"its line is not known: stacks of {endpoint} could not be sampled: {error.message}"]
    suspect, peer = (job_lines(data.body.decode("utf-8", "replace")) for _, data in answers.answered)
    return replace(first, line=slow_line(suspect, peer)), []


async def _ask(
    endpoints: Sequence[Endpoint], question: Callable[[Client], Awaitable[T]], timeout_s: float
) -> Answers[T]:
    return await ask(endpoints, question, timeout_s=timeout_s, inject=False, remark=remark)
