"""Gradients are cleared between backward and the step of the optimizer.

`loss.backward(); optimizer.zero_grad(); optimizer.step()` throws away what backward has made: the optimizer steps
without a gradient, and no weight ever moves. Seen where `zero_grad` of an optimizer comes after the last backward
before its step, step after step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT optimizer, place, any_value(cleared_early) AS early, any_value(steps) AS steps
FROM torch.optimizers, (SELECT count(*) AS steps FROM python.steps) GROUP BY optimizer, place
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no optimizer of torch was found")
    for row in rows:
        if row["early"] >= max(limits["steps"], limits["share"] * row["steps"]):
            yield Finding(
                f"the gradients of {row['optimizer']} are cleared before it steps: no step has any",
                Certainty.CERTAIN,
                share=1.0,
                where=str(row["place"]),
                evidence=(f"zero_grad came after the last backward in {row['early']:,} of {row['steps']:,} steps",),
                advice=("clear them before backward, or after the step, never between the two",),
                try_first="optimizer.zero_grad(); loss.backward(); optimizer.step()",
            )


RULE = Rule(
    "gradients-cleared-early",
    "numbers",
    "Does each step of the optimizer find the gradients of its backward?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("steps", 20, "steps without their gradients"),
        Threshold("share", 0.5, "part of the recorded steps that are without them"),
    ),
    explains=("parameters-not-updated", "parameters-without-optimizer", "loss-flat", "gradients"),
    is_live=True,
)
