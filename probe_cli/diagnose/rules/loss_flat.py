"""The loss does not move, because the weights hardly do.

A loss may be flat because the job has converged: that is no fault. Here the sum of all updates that were recorded is
far too small to change anything: an adaptive optimizer moves a weight by about the learning rate in each step, SGD by
the learning rate times the gradient. Other causes of a flat loss have rules of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import ROLLOUTS, Limits, Row, Rule, Threshold, of_each_learner

__all__ = ["RULE"]

SQL = f"""
WITH losses AS (SELECT step, loss, ntile(5) OVER (ORDER BY step) AS part FROM python.steps WHERE isfinite(loss))
SELECT steps.*, early.*, late.*,
    (SELECT mode(module) FROM python.torch_trace WHERE stage = 'step') AS optimizer
FROM (SELECT count(lr) AS steps, min(step) AS first, sum(lr) AS moved, max(lr) AS lr, median(grad_norm) AS norm,
        count(loss) FILTER (isfinite(loss)) AS losses, {ROLLOUTS} AS rollouts FROM python.steps) AS steps,
    (SELECT median(loss) AS early, mad(loss) AS scatter FROM losses WHERE part = 1) AS early,
    (SELECT median(loss) AS late FROM losses WHERE part = 5) AS late
"""
_BY_GRADIENT = ("SGD", "ASGD", "LBFGS")


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if row["losses"] < limits["losses"] or not row["steps"]:
        raise NoEvidence(f"{row['losses']} losses recorded, {limits['losses']:.0f} needed: ask again later")
    if row["rollouts"]:
        raise NotApplicable("a loop of rollouts and updates: small steps are usual, and the loss says little")
    is_adaptive = row["optimizer"] is not None and not str(row["optimizer"]).startswith(_BY_GRADIENT)
    factor = 1.0 if is_adaptive or row["norm"] is None else min(1.0, row["norm"])
    moved = row["moved"] * factor
    falls = abs(row["late"] - row["early"]) > max(limits["change"] * abs(row["early"]), 0.5 * row["scatter"])
    if moved > limits["moved"] or falls or abs(row["late"]) < limits["gone"]:
        return
    why = f"the learning rate is {row['lr']:.3g}"
    if not is_adaptive and row["norm"] is not None and row["norm"] < 1e-3:
        why += f" and the norm of the gradients {row['norm']:.3g}"
    yield Finding(
        f"the loss is flat at {row['late']:.4g}: {why}, too little to move the weights",
        Certainty.LIKELY,
        share=1.0,
        since_step=row["first"],
        evidence=(
            f"all {row['steps']} recorded steps together move a weight by at most about {moved:.1g}",
            f"median of the first fifth of the losses {row['early']:.6g}, of the last fifth {row['late']:.6g}",
        ),
        advice=(
            "raise the learning rate, by 10 to 1,000 times, or check how the schedule scales it",
            "check the gradients: `probe PID grads`",
        ),
        try_first="for group in optimizer.param_groups: group['lr'] *= 100",
    )


RULE = Rule(
    "loss-flat",
    "numbers",
    "Do the steps move the weights at all?",
    SQL,
    of_each_learner(judge),
    (
        Threshold("moved", 2e-6, "sum of the updates of a weight that moves nothing"),
        Threshold("change", 0.02, "change of the loss that counts as none, as a share of it"),
        Threshold("gone", 1e-6, "loss below which nothing is left: the gradients are 0 since it has converged"),
        Threshold("losses", 60, "losses needed to judge"),
    ),
    explains=("loss-at-chance",),
)
