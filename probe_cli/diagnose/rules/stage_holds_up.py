"""All ranks of a pipeline stage, or of another place in the job, are slow together.

Then no single rank is at fault: the stage has more layers than the others, or more expensive ones (the embedding, the
loss over a large vocabulary), and all other stages wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.diagnose.comparing import SQL, THRESHOLDS, blamed, comparison_of, suspect
from probe_cli.diagnose.finding import Finding
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Rule

__all__ = ["RULE"]


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    comparison = await comparison_of(job, found)
    verdict = comparison.verdict
    if verdict.state != "stands out" or verdict.kind != "stage":
        return []
    return [
        replace(
            blamed(found[0], comparison),
            advice=(
                "move layers from this stage to the others until they take equally long",
                "use more micro-batches a step: a smaller part of it is spent filling the pipeline",
            ),
            try_first="probe -t PID --all compare --by module",
        )
    ]


RULE = Rule(
    "stage-holds-up",
    "speed",
    "Does the job wait for one stage?",
    SQL,
    suspect,
    THRESHOLDS,
    explains=("collectives-dominate",),
    look=look,
)
