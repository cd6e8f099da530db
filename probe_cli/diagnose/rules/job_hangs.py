"""The job hangs.

No rank has ended a step or called a collective for ten usual steps and ten seconds at least. Then every rank is looked
at twice, as `probe … hang` does, and the chain of waits is followed to its end: a rank that is elsewhere, has come with
another operation, waits in another group, is stopped, or has ended. A rank that saves, loads, compiles or works has two
minutes before this is called a hang; until then it is possible. A process that has stood still since before the
recorder came hangs if it has trained, and its training thread has not run for five minutes; until then it is possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.cluster.hang.standstill import is_long
from probe_cli.cluster.hang.verdict import State
from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Asked, Limits, Rule, Threshold
from probe_cli.diagnose.standstill import advice_on, verdict_of, works_alone
from probe_cli.text import seconds

__all__ = ["RULE"]

SQL = """
SELECT count(*) AS steps, max(step) AS last, median(duration) AS usual, max(duration) AS longest,
    epoch(now()::TIMESTAMPTZ) - epoch(max(ts)) AS since
FROM python.steps WHERE step > (SELECT max(step) FROM python.steps) - 200
"""


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    paces = [row for one in asked for row in one.rows if row["steps"]]
    if all(is_long(row["since"], row["usual"], row["longest"]) and row["since"] >= limits["seconds"] for row in paces):
        yield Finding(
            "the job stands still", Certainty.SUSPECTED, since_step=max((row["last"] for row in paces), default=None)
        )


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    # Threads of libraries sleep in any process; the main one's number is the process's.
    may_stand = any(str(one.pid) in one.asleep or one.world_size > 1 for one in job.targets.values())
    if found[0].since_step is None and not may_stand:
        raise NotApplicable("no step has ended yet")
    verdict = await verdict_of(job)
    stands_s = verdict.stands_s or 0.0
    # One that is on a CPU while the others wait works, which is a finding of its own.
    runs = all((doing := verdict.doing.get(rank)) is not None and doing.is_running for rank in verdict.ranks)
    works = runs and works_alone(verdict, job)
    if verdict.may_go_on and stands_s >= limits["possible"] and not works:
        begins = "nothing has moved" if found[0].since_step is None else "no step has ended"
        return [
            replace(
                one,
                sentence=f"{begins} for {seconds(stands_s)}, and the job may hang: {verdict.may_go_on}",
                certainty=Certainty.POSSIBLE,
                share=1.0,
                ranks=verdict.ranks,
                advice=("ask again: what has lasted two minutes is called a hang",),
                try_first="probe -t PID --all hang",
            )
            for one in found[:1]
        ]
    if verdict.state is not State.HANGS or verdict.cause == "init":
        return []
    evidence = ["two looks at every rank, two seconds apart"]
    if verdict.aborts_in_s is not None and verdict.aborts_in_s > 0:
        evidence.append(f"torch gives up on the oldest call in {seconds(verdict.aborts_in_s)}")
    return [
        replace(
            one,
            sentence=verdict.sentence,
            certainty=Certainty.CERTAIN,
            share=1.0,
            ranks=verdict.ranks,
            evidence=tuple(evidence),
            advice=advice_on(verdict),
            try_first="probe -t PID --all hang",
        )
        for one in found[:1]
    ]


RULE = Rule(
    "job-hangs",
    "hang",
    "Does the job hang, and for which rank?",
    SQL,
    judge,
    (
        Threshold("seconds", 10.0, "seconds without a step before the ranks are looked at"),
        Threshold("possible", 20.0, "seconds without a step before a rank that may be at work is reported"),
    ),
    explains=(
        "stalled", "timeout-near", "rank-works-alone", "collectives-dominate", "data-bound", "slower-than-best",
        "rank-holds-up", "waits-for-thread", "python-bound", "output-too-often", "values-read-back",
    ),
    look=look,
)  # fmt: skip
