"""One rank saves the checkpoint, and all others wait for it.

A checkpoint that rank 0 writes alone is usual; here it costs a part of the job's time on every rank. With a shorter
timeout of the process group it would end the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Asked, Limits, Rule, Threshold
from probe_cli.text import num_ranks, percent, seconds

__all__ = ["RULE"]

SQL = """
WITH extent AS (SELECT count(*) AS steps, sum(duration) AS lasted, min(step) AS first, max(step) AS last
    FROM python.steps)
SELECT extent.*, saves.*, (SELECT sum(wait) FROM python.collectives, extent WHERE step BETWEEN first AND last) AS waited
FROM extent, (SELECT count(*) AS saves, sum(duration) AS spent, max(duration) AS longest, any_value(path) AS path
    FROM python.checkpoints, extent WHERE kind = 'save' AND on_training_thread AND step >= first) AS saves
"""


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    if all(one.world_size < 2 for one in asked):
        raise NotApplicable("one rank")
    told = [(one, one.rows[0]) for one in asked if one.rows and one.rows[0]["steps"]]
    savers = [(one, row) for one, row in told if row["saves"]]
    if not savers or len(told) < 2:
        raise NotApplicable("no checkpoint was saved since the recorder started, or one rank alone has answered")
    others = [(one, row) for one, row in told if not row["saves"]]
    one, row = max(savers, key=lambda each: each[1]["spent"])
    share = row["spent"] / row["lasted"] if row["lasted"] else 0.0
    if len(savers) > 1 or not others or share < limits["share"]:
        return
    waiting = [other.rank for other, of in others if (of["waited"] or 0.0) >= 0.5 * row["spent"]]
    if not waiting:
        return
    yield Finding(
        f"rank {one.rank} alone saves the checkpoint, and {num_ranks(waiting)} wait {percent(share)} of the time",
        Certainty.CERTAIN,
        cost_s=row["spent"] / row["steps"],
        share=share,
        ranks=(one.rank,),
        evidence=(
            f"{row['saves']} saves by rank {one.rank}, {seconds(row['longest'])} at the longest,"
            f" to {row['path'] or 'an object without a path'}",
            f"the others were blocked in collectives for as long: {num_ranks(waiting)}",
        ),
        advice=(
            "let every rank write its part: torch.distributed.checkpoint.save, or async_save",
            "copy the state to the CPU, and write it from a thread",
            "save less often",
        ),
        try_first="torch.distributed.checkpoint.async_save(state, checkpoint_id=path)",
    )


RULE = Rule(
    "checkpoint-one-rank",
    "checkpoints",
    "Do ranks wait while one of them saves?",
    SQL,
    judge,
    (Threshold("share", 0.05, "share of the time in which the others wait"),),
    explains=("checkpoint-slow", "collectives-dominate"),
)
