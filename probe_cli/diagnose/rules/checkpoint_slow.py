"""Saving checkpoints stops the training for too long.

The time that the training thread spends in torch.save and its kin is held against that of the steps. Either the
checkpoint is written too often, or too slowly. What another thread writes in the meantime does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import mebibytes, percent, seconds

__all__ = ["RULE"]

SQL = """
SELECT count(*) AS saves, sum(duration) AS spent, max(duration) AS longest, sum(size) AS size,
    sum(duration) FILTER (size IS NOT NULL) AS timed, arg_max(path, duration) AS path, min(step) AS since,
    count(DISTINCT step) AS steps_with, arg_max(free, ts) AS free, extent.*
FROM python.checkpoints, (SELECT count(*) AS steps, sum(duration) AS lasted, min(step) AS first FROM python.steps)
    AS extent
WHERE kind = 'save' AND on_training_thread AND step >= extent.first GROUP BY ALL
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows or not rows[0]["steps"]:
        raise NotApplicable("no checkpoint was saved since the recorder started")
    (row,) = rows
    share = row["spent"] / row["lasted"] if row["lasted"] else 0.0
    if row["steps_with"] < limits["saves"] or share < limits["share"] or row["lasted"] < limits["seconds"]:
        return
    speed = row["size"] / row["timed"] if row["timed"] else None
    every = row["steps"] / row["steps_with"]
    written = "" if speed is None else f", {mebibytes(row['size'] / row['saves'])} at {mebibytes(speed)} a second"
    yield Finding(
        f"checkpoints stop the training {percent(share)} of the time",
        Certainty.CERTAIN,
        cost_s=row["spent"] / row["steps"],
        share=share,
        since_step=row["since"],
        evidence=(
            f"{row['saves']} saves in {row['steps']} steps, {seconds(row['spent'] / row['saves'])} each, at most"
            f" {seconds(row['longest'])}{written}",
            f"to {row['path'] or 'an object without a path'}",
        ),
        advice=(
            f"save less often: now every {every:.3g} steps"
            if every < 100
            else "write to a local disk first, and copy to the shared one in the background",
            "torch.distributed.checkpoint.async_save, or a copy to the CPU that a thread writes",
            "save shards from all ranks instead of the whole from one",
        ),
        try_first="torch.distributed.checkpoint.async_save(state, checkpoint_id=path)",
    )


RULE = Rule(
    "checkpoint-slow",
    "checkpoints",
    "Do checkpoints stop the training for long?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.05, "share of the time spent saving"),
        Threshold("saves", 2, "steps with a save needed to judge"),
        Threshold("seconds", 5.0, "seconds of steps needed to judge"),
    ),
    explains=("slower-than-best",),
)
