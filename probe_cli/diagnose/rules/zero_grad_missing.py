"""Gradients are never cleared.

Without `zero_grad()` each backward adds to the gradients of all steps before it: the update goes where the job once
was, and grows until the loss does. No `zero_grad` of the optimizer was called since the recorder came, and the very
same gradient tensors were added to in each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT optimizer, any_value(steps_seen) AS steps, bool_or(is_cleared) AS is_cleared,
    count(*) FILTER (has_gradient) AS gradients, min(gradient_versions) AS additions, count(*) AS tensors,
    max(updates) AS updates,
    (SELECT greatest(1, median(micro_batches)) FROM (FROM python.steps ORDER BY step DESC LIMIT 100)) AS micro_batches
FROM torch.parameters WHERE optimizer IS NOT NULL AND trainable AND coalesce(updates, 1) > 0
GROUP BY optimizer
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no optimizer of torch holds parameters of a model that was found")
    for row in rows:
        if row["steps"] < limits["steps"] or row["is_cleared"] or not row["gradients"]:
            continue
        if row["gradients"] < row["tensors"] / 2 or row["additions"] < 0.9 * row["steps"]:
            continue
        if row["updates"] and row["additions"] >= 1.8 * row["updates"] * (row["micro_batches"] or 1):
            continue  # one change more a step: they are set to zero by hand
        yield Finding(
            f"the gradients of {row['optimizer']} are never cleared: zero_grad() is missing",
            Certainty.LIKELY,
            share=1.0,
            where=row["optimizer"],
            evidence=(
                f"no zero_grad of {row['optimizer']} in {row['steps']:,} steps",
                f"the same {row['gradients']} gradient tensors were added to at least {row['additions']:,} times",
            ),
            advice=(
                "clear them in each step, or after the last of the batches that are accumulated",
                "begin anew from a checkpoint: the weights have followed gradients that were summed up",
            ),
            try_first="optimizer.zero_grad()",
        )


RULE = Rule(
    "zero-grad-missing",
    "numbers",
    "Are gradients cleared between steps?",
    SQL,
    of_each_rank(judge),
    (Threshold("steps", 20, "steps needed to judge"),),
    explains=("loss-rises", "loss-volatile", "loss-spikes", "loss-not-finite", "gradients", "clipping"),
    is_live=True,
)
