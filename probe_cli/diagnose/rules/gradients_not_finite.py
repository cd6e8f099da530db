"""Gradients are NaN or infinite while the loss is finite.

The derivative of a square root, a norm or a logarithm at 0 is infinite, and times 0 it is NaN, though the loss itself
is a number. A guard that steps only where the norm of the gradients is finite then skips every step: no error, a loss
like any other, and weights that never move. Without a guard the next step makes all weights NaN, and the loss with
them, which has a rule of its own. Steps that a GradScaler skips now and then are its work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT count(*) AS norms, count(*) FILTER (NOT isfinite(grad_norm)) AS bad,
    (SELECT min(step) FROM python.steps WHERE NOT isfinite(grad_norm)
        AND step > (SELECT coalesce(max(step) FILTER (isfinite(grad_norm)), -1) FROM python.steps)) AS since,
    count(*) FILTER (isfinite(loss)) AS losses, median(loss) FILTER (isfinite(loss)) AS loss
FROM (FROM python.steps WHERE grad_norm IS NOT NULL ORDER BY step DESC LIMIT 200)
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if row["norms"] < limits["norms"]:
        raise NotApplicable(f"{row['norms']} gradient norms recorded; more: `probe PID config trace.deep_every=1`")
    if row["bad"] < limits["share"] * row["norms"] or row["losses"] < row["norms"] / 2:
        return
    yield Finding(
        f"gradients are NaN or infinite in {percent(row['bad'] / row['norms'])} of the steps, while the loss is finite",
        Certainty.CERTAIN,
        share=1.0,
        since_step=row["since"],
        evidence=(
            f"{row['bad']} of the newest {row['norms']} norms of all gradients; the loss is {row['loss']:.4g}",
            "a step that is skipped for it leaves the weights as they are",
        ),
        advice=(
            "find the module whose backward makes them: `probe PID nan --hunt`",
            "look for sqrt(), norm(), log(), atan2() or a division of what may be 0: add an epsilon inside, x + 1e-8",
            "torch.where() does not help: the branch that is not taken has its gradient, too",
        ),
        try_first="probe PID nan --hunt",
    )


RULE = Rule(
    "gradients-not-finite",
    "numbers",
    "Are the gradients finite?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.5, "part of the newest norms that are not finite"),
        Threshold("norms", 10, "norms needed to judge"),
    ),
    explains=("steps-skipped", "gradients", "parameters-not-updated", "loss-flat", "loss-at-chance", "clipping"),
)
