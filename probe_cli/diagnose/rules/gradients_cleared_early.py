"""Gradients are cleared between backward and the step of the optimizer.

`loss.backward(); optimizer.zero_grad(); optimizer.step()` throws away what backward has made: the optimizer steps
without a gradient, and no weight ever moves. Seen where `zero_grad` of an optimizer comes after the last backward
before its step, step after step.

A loop that accumulates gradients, and clears them with each batch, keeps those of the last batch alone. Seen where
`zero_grad` comes after the backward of a loss that was divided by a constant, as a part of the step's loss is, and
before the step; said of a job with a single optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT optimizer, place, any_value(cleared_early) AS early, any_value(cleared_parts) AS parts,
    any_value(steps) AS steps, any_value(losses) AS losses, any_value(micro_batches) AS micro_batches,
    count(*) OVER () AS optimizers
FROM torch.optimizers, (SELECT count(*) AS steps, count(loss) AS losses, median(micro_batches) AS micro_batches
    FROM python.steps) GROUP BY optimizer, place
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
        elif row["optimizers"] == 1 and row["parts"] >= max(limits["steps"], limits["share"] * row["losses"]):
            yield Finding(
                f"{row['optimizer']} accumulates nothing: gradients of all but the last of"
                f" {row['micro_batches']:.0f} batches are cleared",
                Certainty.LIKELY,
                share=1 - 1 / max(2.0, row["micro_batches"]),
                where=str(row["place"]),
                evidence=(
                    f"zero_grad came {row['parts']:,} times after a backward and before the step, in {row['losses']:,}"
                    " steps whose losses were read",
                    "the losses are divided by a constant, as parts of one loss are",
                ),
                advice=("clear the gradients when the optimizer has stepped, and at no other batch",),
                try_first="if (batch + 1) % accumulate == 0: optimizer.step(); optimizer.zero_grad()",
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
    explains=("parameters-not-updated", "parameters-without-optimizer", "loss-flat", "loss-at-chance", "gradients"),
    is_live=True,
)
