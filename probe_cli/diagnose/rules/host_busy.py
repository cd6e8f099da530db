"""The ranks wait for each other because the host is busy.

Ranks that wait for a core come late by turns, and all others wait for them. The job did not cause that, unless it has
more threads than the host has cores, and no rank of it is slow: where the waits of several ranks go together with the
time that they were ready to run and did not, none of them is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.diagnose.comparing import SQL, THRESHOLDS, comparison_of, suspect
from probe_cli.diagnose.finding import Certainty, Finding
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Rule, Threshold

__all__ = ["RULE"]


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    verdict = (await comparison_of(job, found)).verdict
    if verdict.state != "busy host" or (verdict.share or 0.0) < limits["share"]:
        return []
    return [
        replace(
            found[0],
            sentence=verdict.sentence,
            certainty=Certainty.POSSIBLE,
            cost_s=None,
            share=0.0,  # it is the host's: no finding about the job stands below it
            evidence=(f"{verdict.num_steps} steps compared, from the waits of all ranks",),
            advice=(
                "give the ranks cores of their own: fewer threads a rank, and no other job on the host",
                "see who else runs: top, or the scheduler's view of the host",
            ),
            try_first="top",
        )
    ]


RULE = Rule(
    "host-busy",
    "speed",
    "Do the ranks wait for each other because they wait for cores?",
    SQL,
    suspect,
    (*THRESHOLDS, Threshold("share", 0.10, "part of the job's time that these waits cost together")),
    explains=("collectives-dominate",),
    look=look,
)
