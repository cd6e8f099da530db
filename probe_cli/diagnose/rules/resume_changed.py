"""The job was resumed, and did not go on where it had stopped.

What a loaded checkpoint holds is compared with the first steps after it: its learning rate, its loss, the updates that
its optimizer had counted. A difference means that a part was not restored: the optimizer, the schedule, the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
WITH loads AS (SELECT ts, step, path, has_optimizer, has_model, has_scheduler, saved_step, updates, lr, loss
    FROM python.checkpoints WHERE kind = 'load' AND error IS NULL AND (has_optimizer OR loss IS NOT NULL)
    ORDER BY ts DESC LIMIT 1),
after AS (SELECT step, loss, lr, counted FROM python.steps WHERE ts > (SELECT ts FROM loads) ORDER BY step LIMIT 40),
finite AS (FROM after WHERE isfinite(loss))
SELECT loads.*, first.*, losses.*
FROM loads, (SELECT count(*) AS steps, arg_min(lr, step) AS first_lr, min(step) AS first_step,
        bool_and(counted) AS counted FROM after) AS first,
    (SELECT median(loss) AS first_loss, arg_min(loss, step) AS very_first, min(loss) AS lowest FROM finite) AS losses
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no checkpoint with the state of an optimizer or a loss was loaded since the recorder came")
    (row,) = rows
    if row["steps"] < limits["steps"]:
        raise NotApplicable(f"{row['steps']} steps since the checkpoint was loaded: ask again later")
    changed = [*_lr(row, limits), *_loss(row, limits), *_updates(row)]
    if not changed:
        return
    yield Finding(
        "the resume changed " + " and ".join(what for what, _ in changed),
        Certainty.LIKELY,
        share=0.5,
        since_step=row["first_step"],
        evidence=(
            *(text for _, text in changed),
            f"loaded from {row['path'] or 'an object without a path'}"
            + (f", saved at {row['saved_step']}" if row["saved_step"] is not None else ""),
        ),
        advice=(
            "load all of it: optimizer.load_state_dict, scheduler.load_state_dict, scaler, the step, random states",
            "load the optimizer's state after the optimizer was made with the model's parameters, and before the"
            " scheduler",
            "continue the data where it was: the sampler's epoch and position",
        ),
        try_first="optimizer.load_state_dict(saved['optimizer']); scheduler.load_state_dict(saved['scheduler'])",
    )


def _lr(row: Row, limits: Limits) -> Iterable[tuple[str, str]]:
    before, after = row["lr"], row["first_lr"]
    if not before or after is None:
        return
    factor = after / before
    if 1 / limits["lr"] < factor < limits["lr"]:
        return
    yield "the learning rate", f"learning rate in the checkpoint {before:.3g}, in the first step after it {after:.3g}"


def _loss(row: Row, limits: Limits) -> Iterable[tuple[str, str]]:
    before, after = row["loss"], row["first_loss"]
    if before is None or after is None or before <= 0 or row["lowest"] < limits["loss"] * before:
        return
    yield "the loss", f"loss in the checkpoint {before:.4g}; after it {row['very_first']:.4g}, then about {after:.4g}"


def _updates(row: Row) -> Iterable[tuple[str, str]]:
    before, after = row["updates"], row["first_step"]
    if before is None or before < 20 or not row["counted"] or after >= 0.9 * before:
        return
    yield "the optimizer's state", f"the optimizer had counted {before:,} updates; its count goes on from {after:,}"


RULE = Rule(
    "resume-changed",
    "checkpoints",
    "Did the job go on where the checkpoint ended?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("lr", 1.5, "factor between the learning rates"),
        Threshold("loss", 1.5, "lowest loss of the first 40 steps over that in the checkpoint"),
        Threshold("steps", 10, "steps after the load needed to judge"),
    ),
    explains=("optimizer-not-restored", "loss-rises", "loss-volatile"),
)
