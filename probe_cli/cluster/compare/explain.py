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
from probe_cli.cluster.folded import job_frame, job_lines
from probe_cli.cluster.stacks import ask_stacks
from probe_cli.endpoint import Endpoint
from probe_cli.messages import remark

from .by.module import slow_module
from .comparison import Comparison
from .evidence import NEEDS, beside, slow_line
from .facts import Facts, Who, one_clock_a_host
from .gather import question
from .hang import BETWEEN_S, Progress, hang, look, silence_s, standstill_s
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
#: Ranks that a hung job waits for, of which it is shown where they are.
MAX_STACKS = 4


async def hung(facts: Sequence[Facts], asked: Asked, now: float, timeout_s: float) -> Comparison | None:
    """The comparison of a job that hangs: two looks, a moment apart, before that is said."""
    has_steps = any(fact.steps for fact in facts)
    if has_steps and standstill_s(facts, now) is None:
        return None
    offsets = {fact.who: fact.clock.offset for fact in one_clock_a_host(facts) if fact.clock is not None}
    by_endpoint = {endpoint: who for who, (endpoint, _) in asked.items()}

    async def progress() -> dict[Who, Progress]:
        answers = await _ask(tuple(by_endpoint), look(timeout_s, with_history=not has_steps), timeout_s + GRACE_S)
        return {by_endpoint[endpoint]: found for endpoint, found in answers.answered}

    before = await progress()
    stands_s = standstill_s(facts, now) if has_steps else silence_s(before, offsets, now)
    if stands_s is None:
        return None
    await asyncio.sleep(BETWEEN_S)
    after = await progress()
    targets = {who: target for who, (_, target) in asked.items()}
    verdict = hang(targets, before, after, stands_s + BETWEEN_S, has_steps=has_steps)
    if verdict is None:
        return None
    waited_for = [asked[who][0] for who in asked if who.rank in verdict.ranks][:MAX_STACKS]
    sentence = "; ".join([verdict.sentence, *await _where(waited_for, by_endpoint, timeout_s)])
    return Comparison(replace(verdict, sentence=sentence), (), (), ())


async def _where(endpoints: Sequence[Endpoint], whose: Mapping[Endpoint, Who], timeout_s: float) -> list[str]:
    """Where these ranks are, by the innermost line of the job."""

    async def stacks(client: Client) -> str | None:
        taken = await ask_stacks(client, outside=True)
        threads = [thread for thread in taken.threads if thread.is_training or thread.is_main]
        return job_frame(threads[0].frames) if threads else None

    found = (await _ask(endpoints, stacks, timeout_s)).answered
    return [f"{whose[endpoint]} is in {frame}" for endpoint, frame in found if frame is not None]


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
