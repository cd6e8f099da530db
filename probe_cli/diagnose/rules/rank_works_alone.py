"""One rank works alone while the others wait.

Rank 0 evaluates, writes a checkpoint or prepares data by itself, and all other ranks wait in the next collective. That
is no hang: it ends. But the others stand still meanwhile, and when it takes longer than the group's timeout, torch ends
the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.cluster.hang.standstill import is_long
from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Asked, Limits, Rule, Threshold
from probe_cli.diagnose.standstill import verdict_of, works_alone

__all__ = ["RULE"]

SQL = """
SELECT count(*) AS steps, max(step) AS last, median(duration) AS usual, max(duration) AS longest,
    epoch(now()::TIMESTAMPTZ) - epoch(max(ts)) AS since
FROM python.steps WHERE step > (SELECT max(step) FROM python.steps) - 200
"""


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    if all(one.world_size < 2 for one in asked):
        raise NotApplicable("one rank")
    paces = [row for one in asked for row in one.rows if row["steps"]]
    if all(is_long(row["since"], row["usual"], row["longest"]) and row["since"] >= limits["seconds"] for row in paces):
        yield Finding("ranks wait", Certainty.SUSPECTED, since_step=max((row["last"] for row in paces), default=None))


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    verdict = await verdict_of(job)
    if not works_alone(verdict, job):
        return []
    said = verdict.sentence.partition(": ")[2] or verdict.sentence
    return [
        replace(
            one,
            sentence=f"the other ranks stand still while one works alone: {said}",
            certainty=Certainty.LIKELY,
            share=1.0,
            ranks=verdict.ranks,
            evidence=("two looks at every rank, two seconds apart",),
            advice=(
                "share the work among the ranks, or do it less often",
                "let the others go on: write checkpoints in the background, evaluate in a job of its own",
                "if it has to be so, give the group a timeout that is longer than this takes: init_process_group("
                "timeout=...)",
            ),
            try_first="probe -t PID --all hang",
        )
        for one in found[:1]
    ]


RULE = Rule(
    "rank-works-alone",
    "hang",
    "Does one rank work alone while the others wait?",
    SQL,
    judge,
    (Threshold("seconds", 10.0, "seconds without a step before the ranks are looked at"),),
    explains=("stalled", "timeout-near", "collectives-dominate", "slower-than-best", "rank-holds-up"),
    look=look,
)
