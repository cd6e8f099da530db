"""The verdict of `probe … hang`, for the rules of a job that stands still: two looks at every rank, once for all of
them.

Runs in the CLI on its event loop, and only where the rows say that no step has ended for long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from probe_agent.wire import TargetInfo
from probe_cli.client import Client
from probe_cli.cluster.hang.chain import Cause
from probe_cli.cluster.hang.closer import looked_closer
from probe_cli.cluster.hang.looks import Look, is_alone, look
from probe_cli.cluster.hang.verdict import State, Verdict, judge
from probe_cli.endpoint import Endpoint, Report

from .finding import NoEvidence, NotApplicable
from .job import Job

__all__ = ["advice_on", "verdict_of", "works_alone"]

T = TypeVar("T")

#: Between the two looks; and what one of them takes at most beyond the time-out of its questions.
BETWEEN_S, GRACE_S = 2.0, 10.0
#: By the cause of the verdict: what to do.
ADVICE = {
    "absent": (
        "look at that rank's line: it takes another branch, or works alone while the others wait",
        "every rank has to call the same collectives in the same order: move the call out of `if rank == 0`",
    ),
    "mismatch": ("make the call alike on all ranks: the same operation, sizes and types",),
    "cycle": ("let all ranks use the groups in one order, or give each group a thread and a stream of its own",),
    "no peer": ("pair every send with a receive, in one order on both sides",),
    "device": ('look at that rank\'s GPU: `probe PID query "FROM gpu.samples ORDER BY ts DESC LIMIT 20"`',),
    "network": ("look at the network between the hosts, and at the GPUs: all ranks have come and none is done",),
    "gone": ("if it is stopped, resume it: kill -CONT PID; if it has ended, `probe … ranks` says how: read its log",),
    "left": ("find the rank that ended first: `probe … ranks`",),
    "store": ("see that the process with the job's store lives, and that its port can be reached",),
}
OF_SENDS = (
    "let one of them receive first, or post both at once: torch.distributed.batch_isend_irecv",
    "see whether one of them has left out a send, such as after an exception that was caught",
)
OTHERWISE = ("see the stacks of all ranks together: `probe -t PID --all backtrace`",)


async def verdict_of(job: Job) -> Verdict:
    """The verdict on the job. Raises NoEvidence where no rank could be looked at, NotApplicable for a report, in which
    nothing moves."""
    if any(isinstance(endpoint, Report) for endpoint in job.targets):
        raise NotApplicable("a report is of a moment: nothing moves in it")
    return await job.once("verdict of hang", lambda: _verdict(job))


def advice_on(verdict: Verdict) -> tuple[str, ...]:
    """What to do about a job that hangs, or has died of it."""
    is_of_sends = any(stop.is_of_sends for stop in verdict.stops[:1])
    return OF_SENDS if is_of_sends else ADVICE.get(verdict.cause, OTHERWISE)


def works_alone(verdict: Verdict, job: Job) -> bool:
    """Whether most ranks wait for a few that do something else, which may end."""
    alone = 0 < len(verdict.ranks) * 2 <= len(job.targets)
    return alone and verdict.state is State.SLOW and verdict.cause == Cause.ABSENT.value


async def _verdict(job: Job) -> Verdict:
    ranks = _ranks(job.targets)
    targets = {rank: job.targets[endpoint] for rank, endpoint in ranks.items()}
    began = time.monotonic()
    before = await _looks(job, ranks)
    await asyncio.sleep(max(0.0, BETWEEN_S - (time.monotonic() - began)))
    between_s = time.monotonic() - began
    after = await _looks(job, ranks)
    if not after:
        raise NoEvidence("no rank could be looked at twice")
    missing = sorted(set(range(max(target.world_size for target in targets.values()))) - set(after))

    async def ask(question: Callable[[Client], Awaitable[T]], these: Sequence[int]) -> dict[int, T]:
        told = await job.ask(question, [ranks[rank] for rank in these if rank in ranks], timeout_s=GRACE_S)
        return {rank: told[ranks[rank]] for rank in these if ranks.get(rank) in told}

    judged = partial(judge, targets, missing=missing)
    return await looked_closer(judged, before, after, ask, between_s=between_s, timeout_s=job.timeout_s)


async def _looks(job: Job, ranks: Mapping[int, Endpoint]) -> dict[int, Look]:
    told = await job.ask(
        look(job.timeout_s, alone=is_alone(list(job.targets.values()))),
        ranks.values(),
        timeout_s=job.timeout_s + GRACE_S,
    )
    return {rank: told[endpoint] for rank, endpoint in ranks.items() if endpoint in told}


def _ranks(targets: Mapping[Endpoint, TargetInfo]) -> dict[int, Endpoint]:
    """The endpoint of each rank; a single target without a rank is rank 0 of its own job."""
    alone = len(targets) == 1
    return {target.rank or 0: endpoint for endpoint, target in targets.items() if alone or target.rank is not None}
