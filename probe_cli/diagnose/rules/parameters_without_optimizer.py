"""The optimizer holds other parameters than the model's.

The parameters of the model that ask for a gradient are more than those that all optimizers hold: a layer that was
added or replaced after the optimizer was made, a model that was copied or moved, a list that was left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT modules.*, optimizers.* FROM (
    SELECT any_value(module) AS module, sum(trainable) AS trainable, count(*) AS models,
        sum(parameters) AS all_parameters
    FROM torch.modules WHERE depth = 0
      AND module IN (SELECT DISTINCT module FROM python.torch_trace WHERE stage = 'backward')
) AS modules, (
    SELECT sum(parameters) AS held, count(*) AS param_groups, any_value(optimizer) AS optimizer FROM torch.optimizers
) AS optimizers
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["models"] or not row["param_groups"]:
        raise NotApplicable("no model was seen in a backward, or no optimizer of torch was found")
    held, trainable = row["held"], row["trainable"]
    if row["models"] > 1 or held >= trainable:
        return
    yield Finding(
        f"{percent(1 - held / trainable)} of {row['module']}'s trainable parameters are in no optimizer"
        if held
        else f"none of {row['module']}'s trainable parameters are in an optimizer",
        Certainty.LIKELY,
        share=1 - held / trainable,
        where=row["module"],
        evidence=(f"trainable parameters: {trainable:,}; held by {row['optimizer']}: {held:,}",),
        advice=(
            "make the optimizer after the last change of the model: replaced heads, added adapters, .to() of a copy",
            "freeze on purpose what is not to be trained: requires_grad_(False)",
        ),
        try_first='probe PID eval "[n for n, p in model.named_parameters() if p.requires_grad and all(p is not q for'
        " g in optimizer.param_groups for q in g['params'])][:10]\"",
    )


RULE = Rule(
    "parameters-without-optimizer",
    "numbers",
    "Does the optimizer hold the model's parameters?",
    SQL,
    of_each_rank(judge),
    is_live=True,
)
