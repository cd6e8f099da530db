"""The checkpoints do not hold the optimizer's state.

Weights alone are enough to use a model, not to go on with its training: Adam's moments begin anew, the loss jumps, and
the schedule starts from its first step. Judged is what torch.save and its kin were given in the whole time recorded,
for files: what is written into memory is a copy that the job sends or compresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import mebibytes

__all__ = ["RULE"]

SQL = """
SELECT saves.*, optimizers.*, (SELECT count(*) FROM torch.schedulers) AS schedulers
FROM (SELECT count(DISTINCT step) AS saves, bool_or(has_optimizer) AS has_optimizer,
        bool_or(has_scheduler) AS has_scheduler, bool_or(has_model) AS has_model, arg_max(path, ts) AS path,
        arg_max(keys, ts) AS keys, bool_or("function" LIKE '%distributed%') AS is_sharded
    FROM python.checkpoints WHERE kind = 'save' AND error IS NULL AND step >= 0 AND path IS NOT NULL) AS saves,
    (SELECT sum(state_memory) AS state, any_value(optimizer) AS optimizer, max(updates) AS updates
    FROM torch.optimizers) AS optimizers
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if row["saves"] < limits["saves"] or not row["has_model"] or row["is_sharded"]:
        raise NotApplicable("too few checkpoints of a model were saved since the recorder started")
    if row["has_optimizer"] or not row["state"]:
        return
    yield Finding(
        f"the checkpoints do not hold the state of {row['optimizer']}: a resume would begin without it",
        Certainty.POSSIBLE,
        share=0.1,
        evidence=(
            f"{row['saves']} saves, the newest to {row['path']}, with the keys {row['keys'] or 'of no dictionary'}",
            f"{row['optimizer']} has {mebibytes(row['state'])} of state",
        ),
        advice=(
            "save optimizer.state_dict(), scheduler.state_dict(), the step, and the states of the random generators",
            "pass over this where the files are for inference only, and the job need not be resumed",
        ),
        try_first="torch.save({'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'step': step}, path)",
    )


RULE = Rule(
    "checkpoint-incomplete",
    "checkpoints",
    "Do checkpoints hold the optimizer's state?",
    SQL,
    of_each_rank(judge),
    (Threshold("saves", 2, "steps with a save needed to judge"),),
    is_live=True,
)
