"""The optimizer holds other parameters than the model's.

The parameters of the model that ask for a gradient are more than those that all optimizers hold: a layer that was
added or replaced after the optimizer was made, a list that was left out. Or the optimizers hold as many, but of another
model: none of theirs has a gradient or was ever changed, and parameters that no optimizer holds have one. Or they hold
the parameters of a layer that is no part of the model any more. Where an optimizer has shards or copies in their place,
as with DeepSpeed's ZeRO, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT modules.*, optimizers.*, gradients.* FROM (
    SELECT any_value(module) AS module, sum(trainable) AS trainable, count(*) AS models,
        sum(parameters) AS all_parameters
    FROM torch.modules WHERE depth = 0
      AND module IN (SELECT DISTINCT module FROM python.torch_trace WHERE stage = 'backward')
) AS modules, (
    SELECT sum(parameters) AS held, count(*) AS param_groups, any_value(optimizer) AS optimizer,
        sum(num_tensors) AS tensors, max(world_size) AS world_size
    FROM torch.optimizers
) AS optimizers, (
    SELECT count(*) FILTER (optimizer IS NULL AND has_gradient) AS astray,
        any_value(split_part(module, '.', 1)) FILTER (optimizer IS NULL AND has_gradient) AS astray_of,
        any_value(module) FILTER (optimizer IS NULL AND has_gradient) AS astray_in,
        sum(parameters) FILTER (optimizer IS NULL AND has_gradient) AS num_astray,
        count(*) FILTER (module IS NULL AND NOT has_gradient AND updates IS NULL) AS left_over,
        count(*) FILTER (optimizer IS NOT NULL AND (has_gradient OR updates > 0 OR versions > 8)) AS alive,
        any_value(split_part(module, '.', 1)) FILTER (optimizer IS NOT NULL) AS held_of, max(steps_seen) AS steps,
        count(*) FILTER (optimizer IS NOT NULL AND module IS NOT NULL) AS held_of_models
    FROM torch.parameters WHERE trainable
) AS gradients
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["models"] or not row["param_groups"]:
        raise NotApplicable("no model was seen in a backward, or no optimizer of torch was found")
    if row["astray"] and not row["alive"] and row["steps"] >= limits["steps"]:
        yield _of_another_model(row)
        return
    if row["astray"] and row["left_over"] and row["steps"] >= limits["steps"]:
        yield _of_a_layer_that_is_gone(row)
        return
    held, trainable = row["held"], row["trainable"]
    if row["models"] > 1 or held >= trainable:
        return
    if not row["tensors"] or (not row["held_of_models"] and held * (row["world_size"] or 1) >= trainable):
        raise NotApplicable("the optimizer has shards or copies of the parameters in their place, as with ZeRO")
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


def _of_a_layer_that_is_gone(row: Row) -> Finding:
    return Finding(
        f"{row['optimizer']} holds parameters that are in no model, and {row['astray_in']} is in no optimizer",
        Certainty.LIKELY,
        share=min(1.0, row["num_astray"] / row["trainable"]) if row["trainable"] else None,
        where=row["astray_in"],
        evidence=(
            f"{row['astray']} tensors have a gradient and are in no optimizer",
            f"{row['left_over']} tensors of {row['optimizer']} have no module, no gradient, and were never updated",
        ),
        advice=("make the optimizer after the last change of the model: a replaced head, an added adapter",),
        try_first="optimizer = torch.optim.Adam(model.parameters())",
    )


def _of_another_model(row: Row) -> Finding:
    of = "of a model that is gone" if row["held_of"] is None else f"of {row['held_of']}"
    return Finding(
        f"{row['optimizer']} holds the parameters {of}, and gradients go to those of {row['astray_of']}",
        Certainty.LIKELY,
        share=1.0,
        where=row["astray_of"],
        evidence=(
            f"no parameter of {row['optimizer']} has a gradient or was changed in {row['steps']:,} steps",
            f"{row['astray']} tensors of {row['astray_of']} have a gradient and are in no optimizer",
        ),
        advice=("make the optimizer with the parameters of the model that is called, after its last change",),
        try_first="optimizer = torch.optim.Adam(model.parameters())",
    )


RULE = Rule(
    "parameters-without-optimizer",
    "numbers",
    "Does the optimizer hold the model's parameters?",
    SQL,
    of_each_rank(judge),
    (Threshold("steps", 20, "steps needed to tell that the optimizer's parameters never change"),),
    explains=("loss-flat", "zero-grad-missing", "parameters-not-updated", "gradients", "schedule"),
    is_live=True,
)
