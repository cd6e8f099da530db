"""The checkpoints do not hold the optimizer's state.

Weights alone are enough to use a model, not to go on with its training: Adam's moments begin anew, the loss jumps, and
the schedule starts from its first step. Judged is what torch.save and its kin were given in the whole time recorded,
for files: what is written into memory is a copy that the job sends or compresses. Files of weights and nothing else are
taken for a model that is handed on (model.pt, best.pt), unless their path speaks of a job that goes on
(checkpoint, ckpt, last, latest, resume, step, epoch).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import mebibytes

__all__ = ["RULE"]

SQL = """
SELECT saves.*, optimizers.*, (SELECT count(*) FROM torch.schedulers) AS schedulers
FROM (SELECT count(DISTINCT step) AS saves, bool_or(has_optimizer) AS has_optimizer,
        bool_or(has_scheduler) AS has_scheduler, bool_or(has_model) AS has_model, arg_max(path, ts) AS path,
        list(DISTINCT path) AS paths,
        arg_max(keys, ts) AS keys, bool_or("function" LIKE '%distributed%') AS is_sharded
    FROM python.checkpoints WHERE kind = 'save' AND error IS NULL AND step >= 0 AND path IS NOT NULL) AS saves,
    (SELECT sum(state_memory) AS state, any_value(optimizer) AS optimizer, max(updates) AS updates
    FROM torch.optimizers) AS optimizers
"""
#: In the name of a file or its folder: it is made for a job that goes on; or in that of a file: it is not.
GOES_ON = re.compile(r"ckpt|che?c?kp(oin)?t|resume|last|latest|snapshot|step|epoch|iter", re.I)
HANDED_ON = re.compile(r"best|ema|final|export", re.I)
#: Keys of a file that holds more than weights, none of which has a dot or stands for a model.
WEIGHTS = re.compile(r"[\w.]*\.[\w.]+|model\w*|net\w*|state_dict|weights?|bias|module|params")
#: So many keys may be too long for the column.
MANY = 8


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if row["saves"] < limits["saves"] or not row["has_model"] or row["is_sharded"]:
        raise NotApplicable("too few checkpoints of a model were saved since the recorder started")
    if row["has_optimizer"] or not row["state"]:
        return
    if _is_weights(row["keys"]) and not any(map(_goes_on, row["paths"])):
        raise NotApplicable("weights alone are saved, under a name that says nothing of a job that goes on")
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


def _is_weights(keys: str | None) -> bool:
    names = [key for key in (keys or "").split(", ") if key]
    # A long text is cut, amid a name.
    return all(WEIGHTS.fullmatch(name) for name in names[: -1 if len(names) > MANY else None])


def _goes_on(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return not HANDED_ON.search(name) and GOES_ON.search(f"{folder.rpartition('/')[2]}/{name}") is not None


RULE = Rule(
    "checkpoint-incomplete",
    "checkpoints",
    "Do checkpoints hold the optimizer's state?",
    SQL,
    of_each_rank(judge),
    (Threshold("saves", 2, "steps with a save needed to judge"),),
    is_live=True,
)
