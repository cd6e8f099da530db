"""The ranks wait now for one of them and now for another.

No rank is slow by itself, and the job still waits for the slowest one in every step. It costs more the more ranks there
are. Batches of different length do it, garbage collections at different steps, and storage with long tails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.diagnose.comparing import SQL, THRESHOLDS, comparison_of, suspect
from probe_cli.diagnose.finding import Certainty, Finding
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Rule, Threshold

__all__ = ["RULE"]

ADVICE = {
    "data_wait": "let the loaders run further ahead: a larger prefetch_factor evens out slow samples",
    "forward": "put batches together by length, so that all ranks have as much to compute in a step",
    "backward": "put batches together by length, so that all ranks have as much to compute in a step",
    "other": "collect garbage on all ranks at the same step: gc.disable(), and gc.collect() every N steps",
}


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    verdict = (await comparison_of(job, found)).verdict
    if verdict.state != "rotates" or (verdict.share or 0.0) < limits["share"]:
        return []
    return [
        replace(
            found[0],
            sentence=verdict.sentence,
            certainty=Certainty.LIKELY,
            cost_s=verdict.cost,
            share=verdict.share,
            where=verdict.where or "",
            evidence=(f"{verdict.num_steps} steps compared, from the waits of all ranks",),
            advice=(
                *([ADVICE[verdict.where]] if verdict.where in ADVICE else []),
                "see which phase varies: `probe -t PID --all compare --by phase`",
            ),
            try_first="probe -t PID --all compare --by phase",
        )
    ]


RULE = Rule(
    "waits-rotate",
    "speed",
    "Do the ranks wait for each other by turns?",
    SQL,
    suspect,
    (*THRESHOLDS, Threshold("share", 0.10, "part of the job's time that the turns cost together")),
    explains=("collectives-dominate",),
    look=look,
)
