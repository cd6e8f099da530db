"""The model is evaluated in training mode.

Without `model.eval()` dropout drops at random in a validation as well, so that its numbers are too bad, and batch norm
takes the validation batches into its running statistics. Seen where a block without gradients calls a model while its
dropout or batch norm is in training mode.

Nothing is said of what happens in most steps, such as the targets of a teacher or a momentum encoder, nor of what takes
less time than half a step, such as a few samples of a generator: there training mode is usual. Averaging batch norm
anew (`update_bn`) is no evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
WITH recent AS (FROM python.steps ORDER BY step DESC LIMIT 2000)
SELECT module, without_gradients, active, steps.* FROM torch.evaluations AS evaluations, (
    SELECT count(*) AS steps, count(*) FILTER (evaluation > 0) AS evaluated,
        median(evaluation) FILTER (evaluation > 0) AS lasts, max(step) FILTER (evaluation > 0) AS last,
        median(duration - coalesce(evaluation, 0)) AS usual FROM recent
) AS steps WHERE without_gradients > 0
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no model was evaluated without gradients since the recorder started")
    if not rows[0]["evaluated"]:
        raise NoEvidence("no step with an evaluation has ended: ask again later")
    for row in rows:
        is_rare = row["evaluated"] <= limits["most"] * row["steps"]
        if row["active"] < limits["times"] or not is_rare or row["lasts"] < limits["length"] * row["usual"]:
            continue
        yield Finding(
            f"{row['module']} is evaluated in training mode",
            Certainty.LIKELY,
            where=str(row["module"]),
            evidence=(
                f"{row['active']} of {row['without_gradients']} blocks without gradients called it with dropout or"
                " batch norm in training mode",
                f"{row['evaluated']} of {row['steps']} steps evaluated, step {row['last']} the last one",
            ),
            advice=(
                "call model.eval() before a validation, and model.train() after it",
                "batch norm has learned from the validation batches too: numbers of before are not those of a test",
            ),
            try_first="model.eval()",
        )


RULE = Rule(
    "evaluates-in-training-mode",
    "numbers",
    "Is the model evaluated in evaluation mode?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("times", 2, "evaluations in training mode"),
        Threshold("most", 0.5, "part of the steps with an evaluation from which it is a part of training"),
        Threshold("length", 0.5, "steps that an evaluation takes at least"),
    ),
    is_live=True,
)
