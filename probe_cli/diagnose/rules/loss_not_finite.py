"""The loss is NaN or infinite.

From the first step on whose loss is not finite every weight that it touched is lost, unless a GradScaler skipped the
update. `probe … nan` names the module that made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT count(loss) AS losses, count(*) FILTER (NOT isfinite(loss)) AS bad,
    min(step) FILTER (NOT isfinite(loss)) AS since, min(step) FILTER (loss IS NOT NULL) AS first,
    arg_max(isfinite(loss), step) FILTER (loss IS NOT NULL) AS is_finite_now,
    count(*) FILTER (skipped AND NOT isfinite(loss)) AS skipped,
    arg_max(loss, step) FILTER (isfinite(loss)) AS last_finite, min(abs(loss)) FILTER (isfinite(loss)) AS lowest,
    arg_max(lr, step) FILTER (isfinite(loss)) AS lr
FROM python.steps
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["losses"]:
        raise NoEvidence("no loss is recorded: backward has not been called on one, or the first step has not ended")
    if not row["bad"]:
        return
    if row["is_finite_now"] and row["skipped"] == row["bad"] <= limits["skipped"] * row["losses"]:
        return  # what the scale is found by
    now = "and has recovered" if row["is_finite_now"] else "and still is"
    since = f"since step {row['since']}" + (", the first that is recorded," if row["since"] == row["first"] else "")
    evidence = [f"{row['bad']} of {row['losses']} losses are not finite"]
    if row["last_finite"] is not None:
        evidence.append(f"the last finite loss was {row['last_finite']:.4g}, at learning rate {row['lr'] or 0:.3g}")
    if row["skipped"]:
        evidence.append(f"GradScaler skipped the optimizer on {row['skipped']} of them")
    grew = abs(row["last_finite"] or 0.0) > limits["grew"] * max(row["lowest"] or 0.0, limits["lowest"])
    advice = [
        "find the module that makes it: `probe PID nan`",
        "go back to a checkpoint before that step: the weights may be lost",
        "lower the learning rate or clip gradients where the loss rose before; bf16 instead of fp16",
        "look at the batch of that step where one rank alone has it",
    ]
    if grew:
        advice.insert(0, "lower the learning rate, by 10 times or more: each step threw the weights further away")
    yield Finding(
        f"the loss is NaN or infinite {since} {now}"
        + (f"; it grew to {row['last_finite']:.2g} before, at learning rate {row['lr'] or 0:.3g}" if grew else ""),
        Certainty.CERTAIN,
        share=None if row["is_finite_now"] else 1.0,
        since_step=row["since"],
        evidence=tuple(evidence),
        advice=tuple(advice),
        try_first="probe PID nan",
    )


RULE = Rule(
    "loss-not-finite",
    "numbers",
    "Is the loss finite?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("skipped", 0.02, "share of the losses that may be infinite where GradScaler has skipped those steps"),
        Threshold("grew", 1e4, "last finite loss over the lowest one from which it grew until it overflowed"),
        Threshold("lowest", 1e-3, "lower ones count as this much"),
    ),
    explains=("loss-rises",),
)
