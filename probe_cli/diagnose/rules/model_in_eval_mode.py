"""The model trains in evaluation mode.

After `model.eval()` dropout does nothing and batch norm keeps its old statistics. A validation that does not call
`model.train()` at its end leaves the model so for the rest of the run. Nothing is said of a model without dropout or
batch norm, nor of one whose dropout and batch norm are in frozen parts alone. A validation that is under way is told
by a second look, when the running step has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Row, Rule, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT modules.*, recent.* FROM (
    SELECT module, class, training, trainable, place, (
            SELECT count(*) FROM torch.modules AS layer
            JOIN torch.modules AS around ON around.module = regexp_replace(layer.module, '\\.[^.]*$', '')
            WHERE (layer.module = model.module OR starts_with(layer.module, model.module || '.'))
                AND regexp_matches(layer.class, '(?i)drop|batchnorm') AND around.trainable > 0) AS layers
    FROM torch.modules AS model WHERE depth = 0 AND trainable > 0
) AS modules, (
    SELECT count(*) AS steps, count(*) FILTER (backward > 0) AS with_backward,
        coalesce(sum(evaluation), 0) AS evaluation, max(step) AS step
    FROM (FROM python.steps ORDER BY step DESC LIMIT 3)
) AS recent, (
    SELECT list(DISTINCT module) AS trained FROM python.torch_trace WHERE stage = 'backward'
) WHERE list_contains(trained, module)
"""
#: How long the end of the running step is waited for: a validation is counted in the step that it ran in.
PAUSE_S, NUM_LOOKS = 0.4, 25


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no module with trainable parameters was seen in a backward")
    for row in rows:
        if row["training"] or not row["layers"] or row["steps"] < 3 or row["with_backward"] < 3:
            continue
        yield Finding(
            f"{row['module']} trains in evaluation mode",
            Certainty.SUSPECTED,  # a validation may be under way, in which this is right
            since_step=row["step"],
            share=0.5,
            where=str(row["module"]),  # not its place, which is another one while the model is in forward()
            evidence=(
                f"{row['module']} is the {row['place']}",
                "training=False in steps that ran a backward and evaluated nothing",
                f"layers of dropout or batch norm in its trainable parts: {row['layers']}",
            ),
            advice=("call model.train() after each validation and at the start of each epoch",),
            try_first="model.train()",
        )


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    """Those whose model is in evaluation mode when a later step has ended, too, around which nothing was evaluated."""
    return [
        replace(one, certainty=Certainty.LIKELY, since_step=None)
        for one in found
        if await job.once(f"rank {one.ranks[0]}, mode of {one.where}", partial(_stays, job, one))
    ]


async def _stays(job: Job, one: Finding) -> bool:
    evaluates = False
    for _ in range(NUM_LOOKS):
        rows = await job.rows(SQL, one.ranks[0])  # none if it does not answer
        row = next((row for row in rows if row["module"] == one.where), None)
        if rows and (row is None or row["training"]):
            return False
        if row is not None:
            evaluates = row["evaluation"] > 0
            if not evaluates and row["step"] > (one.since_step or 0):
                return True
        await asyncio.sleep(PAUSE_S)
    if evaluates:
        return False  # as rollouts in every step do
    raise NoEvidence("a validation may be under way: ask again later")


RULE = Rule(
    "model-in-eval-mode",
    "numbers",
    "Does the model train in training mode?",
    SQL,
    of_each_rank(judge),
    explains=("loss-spikes", "loss-volatile"),
    is_live=True,
    look=look,
)
