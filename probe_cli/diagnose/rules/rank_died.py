"""A rank has ended with an error, or a thread of it.

The first error is the cause: what the other ranks say of closed connections follows from it. But a rank that ends
because its call has timed out is a victim: what the job hung in before its ranks ended is told, as `probe … hang` finds
it. An exception in a thread of the job (a prefetcher, a logger) does not end the process, and what it did is not done
any more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from probe_cli.cluster.hang.verdict import State
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.raised import is_late, place, said
from probe_cli.diagnose.rule import Asked, Limits, Row, Rule
from probe_cli.diagnose.standstill import advice_on, verdict_of

__all__ = ["RULE"]

SQL = """
SELECT 'raised' AS kind, type, message, thread, is_main, func, file, lineno, traceback, step, epoch(ts) AS at
FROM python.exceptions WHERE link = 0 AND type NOT IN ('KeyboardInterrupt', 'SystemExit')
UNION ALL BY NAME
SELECT 'ended' AS kind, how AS message, signal, exit_code, step, epoch(coalesce(ts, last_seen)) AS at
FROM process.end WHERE signal IS NOT NULL OR coalesce(exit_code, 1) <> 0
"""
#: What gloo and NCCL say when another rank has gone.
LOST_PEER = re.compile(r"closed by peer|reset by peer|[Bb]roken pipe|remote process exited|Socket closed")
LATE = (
    "run it again with CUDA_LAUNCH_BLOCKING=1: otherwise CUDA tells of a failed kernel at some later line",
    "a device-side assert is most often an index out of range, such as a label or a token beyond the size of a layer;"
    " the job's stderr has the assertion",
)


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    events = sorted(((row["at"] or 0.0, one.rank, row) for one in asked for row in one.rows), key=lambda one: one[:2])
    own = [event for event in events if not LOST_PEER.search(event[2]["message"] or "")]
    raised = {rank for _, rank, row in own if row["kind"] == "raised" and row["is_main"]}
    blamed = [
        (rank, row)
        for _, rank, row in own or events
        if row["kind"] == "raised" or rank not in raised  # its end says less than its exception
    ]
    of_main = [(rank, row) for rank, row in blamed if row["kind"] == "ended" or row["is_main"]]
    followers = {rank for _, rank, row in events if LOST_PEER.search(row["message"] or "")} - {
        rank for rank, _ in of_main[:1]
    }
    for rank, row in of_main[:1]:
        yield _finding(rank, row, f"rank {rank} ended: {_what(row)}", Certainty.CERTAIN, followers)
    seen: set[str] = set()
    for rank, row in blamed:
        if row["kind"] == "raised" and not row["is_main"] and row["thread"] not in seen:
            seen.add(row["thread"])
            yield _finding(rank, row, f"thread {row['thread']} has ended: {_what(row)}", Certainty.LIKELY, set())


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    with suppress(NoEvidence, NotApplicable):  # a report, or ranks that left too little: the first error stands
        verdict = await verdict_of(job)
        if verdict.cause == "gone" or verdict.state not in (State.DIED, State.HANGS):
            return found
        victims = [one for one in found if one.certainty is Certainty.CERTAIN and not set(one.ranks) & {*verdict.ranks}]
        others = [one for one in found if one not in victims]
        if verdict.state is State.HANGS:  # which another rule tells, with these ends
            return others
        ranks, advice = verdict.ranks, advice_on(verdict)
        hung = [replace(one, sentence=verdict.sentence, ranks=ranks, where="", advice=advice) for one in victims]
        return [*hung, *others]
    return found


def _finding(rank: int, row: Row, sentence: str, certainty: Certainty, followers: set[int]) -> Finding:
    raised = row["kind"] == "raised"
    at = place(row) if raised else None
    evidence = [] if at is None else [f"raised in {at[0]} ({at[1]}:{at[2]})"]
    if followers:
        evidence.append(f"ranks {', '.join(map(str, sorted(followers)))} lost their connection to it and ended too")
    return Finding(
        sentence,
        certainty,
        share=1.0,
        ranks=(rank,),
        where="" if at is None else f"{os.path.basename(at[1])}:{at[2]}",
        since_step=row["step"] if (row["step"] or -1) >= 0 else None,
        evidence=tuple(evidence),
        advice=(
            *(LATE if raised and is_late(row) else ()),
            'read the whole traceback: `probe PID query "SELECT traceback FROM python.exceptions"`',
            "let an error end the whole job: torchrun does, and a watchdog does for threads",
        ),
        try_first='probe PID query "FROM python.exceptions ORDER BY ts"',
    )


def _what(row: Row) -> str:
    return said(row) if row["kind"] == "raised" else (row["message"] or "").strip()


RULE = Rule(
    "rank-died",
    "hang",
    "Has a rank, or a thread of it, ended with an error?",
    SQL,
    judge,
    explains=("job-hangs", "stalled", "timeout-near", "rank-works-alone"),
    look=look,
)
