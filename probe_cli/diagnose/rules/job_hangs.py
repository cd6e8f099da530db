"""The job hangs.

No rank has ended a step or called a collective for ten usual steps and ten seconds at least. Then every rank is looked
at twice, as `probe … hang` does, and the chain of waits is followed to its end: a rank that is elsewhere, has come with
another operation, waits in another group, is stopped, or has ended. A rank that saves, loads, compiles or works has two
minutes before this is called a hang; until then it is possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.cluster.hang.verdict import State, is_long
from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Asked, Limits, Rule, Threshold
from probe_cli.diagnose.standstill import verdict_of
from probe_cli.text import seconds

__all__ = ["RULE"]

SQL = """
SELECT count(*) AS steps, max(step) AS last, median(duration) AS usual, max(duration) AS longest,
    epoch(now()::TIMESTAMPTZ) - epoch(max(ts)) AS since
FROM python.steps WHERE step > (SELECT max(step) FROM python.steps) - 200
"""
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
OTHERWISE = ("see the stacks of all ranks together: `probe -t PID --all backtrace`",)


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    paces = [row for one in asked for row in one.rows if row["steps"]]
    if not paces and all(one.world_size < 2 for one in asked):
        raise NotApplicable("no step has ended yet")
    if all(is_long(row["since"], row["usual"], row["longest"]) and row["since"] >= limits["seconds"] for row in paces):
        yield Finding(
            "the job stands still", Certainty.SUSPECTED, since_step=max((row["last"] for row in paces), default=None)
        )


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    verdict = await verdict_of(job)
    stands_s = verdict.stands_s or 0.0
    if verdict.may_go_on and stands_s >= limits["possible"]:
        return [
            replace(
                one,
                sentence=f"no step has ended for {seconds(stands_s)}, and the job may hang: {verdict.may_go_on}",
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
            advice=ADVICE.get(verdict.cause, OTHERWISE),
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
        "rank-holds-up",
    ),
    look=look,
)  # fmt: skip
