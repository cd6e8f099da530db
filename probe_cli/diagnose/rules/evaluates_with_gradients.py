"""The model is evaluated with gradients.

Without `torch.no_grad()` or `torch.inference_mode()` a validation keeps the activations of all layers for a backward
that never comes: it takes more time, and as much memory as training. Seen where a model is called with gradients after
`model.eval()`, and is in training mode again when the next backward begins.

Nothing is said of what happens in most steps, such as targets that the loss detaches: it costs little, or is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT module, with_gradients, steps FROM torch.evaluations,
    (SELECT count(*) AS steps FROM python.steps) AS steps
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no model was evaluated since the recorder started")
    for row in rows:
        if limits["times"] <= row["with_gradients"] <= limits["most"] * row["steps"]:
            yield Finding(
                f"{row['module']} is evaluated with gradients, for which no backward ever asks",
                Certainty.CERTAIN,
                share=0.1,
                where=str(row["module"]),
                evidence=(
                    f"{row['with_gradients']} times in {row['steps']} steps it was called with gradients after"
                    " model.eval(), and trained on without a backward through them",
                ),
                advice=(
                    "evaluate in a block of torch.inference_mode() or torch.no_grad(): it saves the memory of all"
                    " activations, and time",
                ),
                try_first="with torch.inference_mode(): …",
            )


RULE = Rule(
    "evaluates-with-gradients",
    "memory",
    "Is the model evaluated without gradients?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("times", 2, "evaluations with gradients"),
        Threshold("most", 0.5, "evaluations a step from which they are a part of training"),
    ),
    explains=("pauses", "evaluation-dominates"),
    is_live=True,
)
