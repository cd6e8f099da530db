"""A frozen model that gives the targets or features is in training mode.

`model.train()` at the start of an epoch goes to all parts of a model, also to the teacher, the backbone or the loss
network that was put into evaluation mode when it was made. Its dropout then drops at random, so that what it says of a
sample differs each time, and its batch norm takes averages of the batches that it sees. Seen where blocks without
gradients call a model in most steps while its dropout or batch norm is in training mode, no parameter of it asks for a
gradient, and the values of its parameters stay as they are: a momentum encoder that follows the trained model is
usually in training mode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.diagnose.copies import values_of
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
WITH recent AS (FROM python.steps ORDER BY step DESC LIMIT 500)
SELECT evaluations.*, steps.*, (SELECT min(module) FROM torch.modules AS frozen
    WHERE frozen."class" = evaluations.module AND training AND trainable = 0 AND parameters > 0) AS path
FROM torch.evaluations AS evaluations, (SELECT count(*) AS steps,
    count(*) FILTER (evaluation > 0 AND backward > 0) AS evaluated FROM recent) AS steps
"""
NEWEST = "SELECT max(step) AS step FROM python.steps"
#: How long its values are watched, looked at each so often.
WATCH_S, PAUSE_S = 3.0, 0.5


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    frozen = [row for row in rows if not row["trainable"] and row["without_gradients"]]
    if not frozen:
        raise NotApplicable("no frozen model was called without gradients since the recorder started")
    if frozen[0]["steps"] < limits["steps"]:
        raise NoEvidence(f"{frozen[0]['steps']} steps recorded, {limits['steps']:.0f} needed: ask again later")
    for row in frozen:
        is_usual = row["evaluated"] >= limits["most"] * row["steps"]
        if row["path"] and is_usual and row["active"] >= limits["times"]:
            yield Finding(
                f"{row['module']}, whose parameters are frozen, is called in training mode",
                Certainty.SUSPECTED,
                where=str(row["path"]),
                evidence=(
                    f"{row['active']:,} of {row['without_gradients']:,} blocks without gradients called it with dropout"
                    " or batch norm in training mode",
                ),
                advice=(
                    "put it back into evaluation mode after model.train(), or override train() of what has it",
                    "load its buffers again: batch norm has taken in the batches of this run",
                ),
                try_first="model.train(); model.teacher.eval()",
            )


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    """See that it does not follow the trained model. Raises NoEvidence where too few steps ended meanwhile."""
    told = []
    for one in found:
        rank = one.ranks[0]
        first, began = await values_of(job, rank, one.where), await _newest(job, rank)
        steps = follows = 0
        for _ in range(int(WATCH_S / PAUSE_S)):
            await asyncio.sleep(PAUSE_S)
            now, steps = await values_of(job, rank, one.where), await _newest(job, rank) - began
            follows += any(now[name] != value for name, value in first.items() if name in now)
            if follows or (first and steps >= limits["watched"]):
                break
        if not follows and (not first or steps < limits["watched"]):
            raise NoEvidence("too few steps ended while the values of a frozen model were watched: ask again later")
        if not follows:
            seen = f"its parameters stayed as they are in {steps:,} steps that were watched: {one.where}"
            told.append(replace(one, certainty=Certainty.LIKELY, evidence=(*one.evidence, seen)))
    return told


async def _newest(job: Job, rank: int) -> int:
    return next((int(row["step"] or 0) for row in await job.rows(NEWEST, rank)), 0)


RULE = Rule(
    "teacher-in-training-mode",
    "numbers",
    "Is a frozen model that training calls in evaluation mode?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("most", 0.5, "part of the steps in which a model is called without gradients"),
        Threshold("times", 20, "calls in training mode"),
        Threshold("steps", 20, "steps needed to judge"),
        Threshold("watched", 5, "steps in which its values are watched"),
    ),
    explains=("loss-volatile", "evaluates-in-training-mode"),
    is_live=True,
    look=look,
)
