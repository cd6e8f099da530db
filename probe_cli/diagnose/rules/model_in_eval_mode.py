"""The model trains in evaluation mode.

After `model.eval()` dropout does nothing and batch norm keeps its old statistics. A validation that does not call
`model.train()` at its end leaves the model so for the rest of the run. Nothing is said of a model without dropout or
batch norm, nor of one whose dropout and batch norm are in frozen parts alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT modules.*, recent.* FROM (
    SELECT module, class, training, trainable, place, (
            SELECT count(*) FROM torch.modules AS layer
            JOIN torch.modules AS around ON around.module = regexp_replace(layer.module, '\\.[^.]*$', '')
            WHERE (layer.module = model.module OR starts_with(layer.module, model.module || '.'))
                AND regexp_matches(layer.class, '(?i)drop|batchnorm') AND around.trainable > 0) AS layers
    FROM torch.modules AS model WHERE depth = 0 AND trainable > 0
) AS modules, (
    SELECT count(*) AS steps, count(*) FILTER (backward > 0) AS with_backward,
        coalesce(sum(evaluation), 0) AS evaluation
    FROM (FROM python.steps ORDER BY step DESC LIMIT 3)
) AS recent, (
    SELECT list(DISTINCT module) AS trained FROM python.torch_trace WHERE stage = 'backward'
) WHERE list_contains(trained, module)
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no module with trainable parameters was seen in a backward")
    for row in rows:
        if row["training"] or not row["layers"] or row["steps"] < 3 or row["with_backward"] < 3 or row["evaluation"]:
            continue  # a validation may be under way, in which this is right
        yield Finding(
            f"{row['module']} trains in evaluation mode",
            Certainty.LIKELY,
            share=0.5,
            where=str(row["place"] or row["module"]),
            evidence=(
                "training=False while its last 3 steps ran a backward, and none of them evaluated anything",
                f"layers of dropout or batch norm in its trainable parts: {row['layers']}",
            ),
            advice=("call model.train() after each validation and at the start of each epoch",),
            try_first="model.train()",
        )


RULE = Rule(
    "model-in-eval-mode",
    "numbers",
    "Does the model train in training mode?",
    SQL,
    of_each_rank(judge),
    explains=("loss-spikes", "loss-volatile"),
    is_live=True,
)
