"""Questions after a first comparison: a second look at a job that stands still, and evidence about a named rank.

Runs in the CLI on its event loop. A rank that does not answer here costs its evidence, and is no failure of the
comparison.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import TypeVar

from probe_agent.wire import CpuProfileRequest, TargetInfo
from probe_cli.client import Client, Data
from probe_cli.cluster.fanout import Answers, ask
from probe_cli.cluster.folded import job_lines
from probe_cli.cluster.hang import verdict as hang
from probe_cli.cluster.hang.looks import Look, look
from probe_cli.endpoint import Endpoint
from probe_cli.messages import remark

from .by.module import slow_module
from .comparison import Comparison, Verdict
from .evidence import NEEDS, beside, slow_line
from .facts import Facts, Who, standstill_s
from .gather import question
from .questions import Extent
from .study import Study
from .verdict import Named, judge, named

__all__ = ["GRACE_S", "Asked", "explained", "hung"]

T = TypeVar("T")

#: Every rank that was asked: its endpoint, and what its host server says of it.
Asked = Mapping[Who, tuple[Endpoint, TargetInfo]]
#: A rank is asked a few questions, one after the other, and for its clock.
GRACE_S = 5.0
#: Peers whose tables are looked at beside those of a rank that is named.
MAX_PEERS = 4
#: What happens now and then is watched for this many of its periods, but no longer than this.
NUM_PERIODS, MAX_WATCH_S = 2, 10
#: Stacks a second while a rank is watched; py-spy starts and ends within the grace.
WATCH_RATE, WATCH_GRACE_S = 50, 30.0
#: Between the two looks at a job that may hang.
BETWEEN_S = 2.0


async def hung(facts: Sequence[Facts], asked: Asked, now: float, timeout_s: float) -> Comparison | None:
    """The comparison of a job that hangs: two looks, a moment apart, before that is said."""
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
    missing = max(target.world_size for target in targets.values()) - len(after)
    verdict = hang.judge(targets, before, after, between_s=BETWEEN_S, missing=max(0, missing))
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
    """The same, with what other tables, and stacks sampled while it works, tell of the rank that is named first."""
    first, *others = named(study)
    suspect = study.facts[first.cost.ranks[0]].who
    peers = [study.facts[at].who for at in study.peers(first.cost)[:MAX_PEERS]]
    first = await _with_tables(first, study, suspect, peers, asked, extent, timeout_s)
    notes: list[str] = []
    alive = [who for who in (suspect, *peers) if asked[who][1].alive]
    if watch_s and alive[:1] == [suspect] and alive[1:]:
        first, notes = await _with_line(first, study, [asked[who][0] for who in alive[:2]], watch_s)
    return replace(comparison, verdict=judge(study, [first, *others]), notes=(*comparison.notes, *notes))


async def _with_tables(
    first: Named,
    study: Study,
    suspect: Who,
    peers: Sequence[Who],
    asked: Asked,
    extent: Extent,
    timeout_s: float,
) -> Named:
    endpoints = {asked[who][0]: who for who in (suspect, *peers)}
    answers = await _ask(tuple(endpoints), question(NEEDS, extent, timeout_s), timeout_s + GRACE_S)
    known = {fact.who: fact for fact in study.facts}
    told = {
        endpoints[endpoint]: replace(fact, who=endpoints[endpoint], clock=known[endpoints[endpoint]].clock)
        for endpoint, fact in answers.answered
    }
    if suspect not in told:
        return first
    since, until = study.span(suspect)
    beside_it = beside(
        told[suspect],
        [fact for who, fact in told.items() if who != suspect],
        since,
        until,
        starved=first.longer.phase == "all phases",
    )
    module = slow_module([replace(fact, steps=known[who].steps) for who, fact in told.items()], suspect)
    return replace(first, beside=beside_it, module=module)


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
