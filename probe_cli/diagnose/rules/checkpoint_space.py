"""The next checkpoints will not fit on their disk.

The free space that was left after the newest save is held against the size of what one round of saves writes. Files
that the job overwrites need the space again only where they are written under another name first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import mebibytes

__all__ = ["RULE"]

SQL = """
WITH saves AS (FROM python.checkpoints WHERE kind = 'save' AND size IS NOT NULL AND free IS NOT NULL)
SELECT step, sum(size) AS size, min(free) AS free, any_value(path) AS path, (SELECT count(DISTINCT path) FROM saves)
    AS paths, (SELECT max(free) - min(free) FROM saves) AS used
FROM saves WHERE step = (SELECT max(step) FROM saves) GROUP BY step
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no checkpoint was saved to a file since the recorder started")
    (row,) = rows
    num = row["free"] / row["size"] if row["size"] else float("inf")
    if num >= limits["rounds"]:
        return
    yield Finding(
        f"there is space for {num:.1f} more checkpoints: {mebibytes(row['free'])} are left, one takes"
        f" {mebibytes(row['size'])}",
        Certainty.CERTAIN if row["paths"] > 1 else Certainty.POSSIBLE,
        share=0.3,
        since_step=row["step"],
        evidence=(f"the newest went to {row['path']}",),
        advice=(
            "remove old checkpoints, and keep the last few only: save_total_limit in Trainers",
            "save to another file system",
        ),
        try_first=f"df -h {row['path'].rpartition('/')[0] or '.'}",
    )


RULE = Rule(
    "checkpoint-space",
    "checkpoints",
    "Is there space for the next checkpoints?",
    SQL,
    of_each_rank(judge),
    (Threshold("rounds", 2.0, "checkpoints that still fit"),),
    explains=("checkpoint-failed",),
)
