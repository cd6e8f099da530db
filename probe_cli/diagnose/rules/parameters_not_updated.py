"""The optimizer holds parameters that it never changes.

torch counts the changes of every tensor. A parameter that was changed only when it was made, while others of the same
optimizer were changed in every step, has never got a gradient: a branch that does not lead to the loss, a detach(), a
layer that is not called. A parameter group whose learning rate is 0 stays as it is, too. However small it is, a layer
with weights that is called in training and never changed is found: the router of a mixture of experts of which only the
argmax is used.

An optimizer that is sharded by whole parameters (ZeroRedundancyOptimizer) changes each of them on one rank and sends it
to the others, which torch does not count: such a parameter must be unchanged on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Asked, Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT optimizer, any_value(steps_seen) AS steps, max(versions) AS versions, max(updates) AS updates,
    count(*) AS tensors, sum(parameters) AS values, bool_or(has_gradient) AS any_gradient,
    (SELECT bool_or(options LIKE '%"fused": true%' OR options LIKE '%"capturable": true%') FROM torch.optimizers)
        AS fused,
    (SELECT count(*) FROM python.torch_trace WHERE stage = 'backward') AS backwards,
    list({'name': concat_ws('.', module, parameter), 'values': parameters, 'versions': versions, 'updates': updates,
        'lr': lr, 'is_called': is_called}) FILTER (versions <= 8 AND coalesce(updates, 0) <= 8) AS untouched,
    sum(parameters) FILTER (lr = 0) AS at_zero, any_value(module) FILTER (lr = 0) AS zero_module, max(lr) AS lr
FROM (
    -- Of a layer of which nothing was changed, the largest tensor, which tells a weight from a bias.
    SELECT *, parameters = max(parameters) OVER layer AND max(versions) OVER layer <= 8
        AND max(coalesce(updates, 0)) OVER layer <= 8 AND parameters >= 64 AND module IN
            (SELECT module FROM python.torch_trace WHERE stage = 'forward' AND phase = 'train') AS is_called
    FROM torch.parameters WHERE optimizer IS NOT NULL AND trainable AND versions IS NOT NULL
    WINDOW layer AS (PARTITION BY optimizer, module)
)
GROUP BY optimizer
"""

#: Optimizers that change parameters so that torch counts it, unless they are fused.
_COUNTING = frozenset(("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop"))


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    everywhere = _untouched_everywhere(asked)
    limited = [replace(one, rows=[_limited(row, everywhere) for row in one.rows]) for one in asked]
    found = list(of_each_rank(_judge)(limited, limits))
    if not found and len(asked) < max((one.world_size for one in asked), default=0) and limited != list(asked):
        raise NoEvidence(
            f"{' and '.join(everywhere)} may change a parameter on another rank: ask all ranks, with --all"
        )
    return found


def _untouched_everywhere(asked: Sequence[Asked]) -> dict[str, set[str]]:
    """By optimizer that may be sharded: the parameters that no rank changes, none where a rank has not told."""
    found: dict[str, set[str]] = {}
    is_whole = len(asked) >= max((one.world_size for one in asked), default=1)
    for one in asked:
        for row in one.rows:
            if one.world_size > 1 and not _is_counting(row):
                names = {each["name"] for each in row["untouched"] or [] if is_whole}
                found[row["optimizer"]] = found.get(row["optimizer"], names) & names
    return found


def _limited(row: Row, everywhere: Mapping[str, set[str]]) -> Row:
    names = everywhere.get(row["optimizer"])
    untouched = row["untouched"] or []
    return row if names is None else {**row, "untouched": [each for each in untouched if each["name"] in names]}


def _is_counting(row: Row) -> bool:
    return str(row["optimizer"]).partition("#")[0] in _COUNTING


def _judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no optimizer of torch holds parameters of a model that was found")
    if max(row["steps"] for row in rows) < limits["steps"]:
        raise NotApplicable("too few steps since the recorder started")
    for row in rows:
        yield from _untouched(row, limits)
        if row["at_zero"] and row["lr"]:
            yield Finding(
                f"a parameter group of {row['optimizer']} has the learning rate 0"
                f" ({percent(row['at_zero'] / row['values'])} of its parameters)",
                Certainty.POSSIBLE,
                share=row["at_zero"] / row["values"],
                where=f"learning rate 0 at {row['zero_module']}",
                evidence=(f"other groups: up to {row['lr']:.3g}",),
                advice=("set its learning rate, or freeze it: requires_grad_(False) saves its gradients",),
                try_first='probe PID query "FROM torch.optimizers"',
            )


def _untouched(row: Row, limits: Limits) -> Iterable[Finding]:
    untouched = row["untouched"] or []
    is_whole = len(untouched) == row["tensors"]
    counts = max(row["versions"], row["updates"] or 0)
    if not untouched or (not is_whole and counts < limits["changes"]):
        return
    known = _is_counting(row) and not row["fused"]
    if is_whole and (not known or row["any_gradient"] or row["backwards"] or row["steps"] < limits["changes"]):
        return  # other optimizers do not count, and a module with a backward has had gradients
    values = sum(one["values"] or 0 for one in untouched)
    share = values / row["values"] if row["values"] else 0.0
    called = [one["name"] for one in untouched if one["is_called"]]
    if share < limits["share"] and (is_whole or not called):
        return
    names = sorted((one["name"] for one in untouched), key=lambda name: name not in called)
    if is_whole:
        said = "no parameter was ever changed"
    elif share < limits["share"]:
        said = f"a layer that {row['optimizer']} holds was never changed"
    else:
        said = f"{percent(share)} of the parameters of {row['optimizer']} were never changed"
    yield Finding(
        f"{said}: {names[0]}" + (f" and {len(names) - 1} more" if names[1:] else ""),
        Certainty.LIKELY if share >= limits["share"] else Certainty.POSSIBLE,
        share=share,
        where=names[0],
        evidence=(
            f"changed {untouched[0]['versions']} times since it was made; others of {row['optimizer']} up to"
            f" {counts:,} times"
            if not is_whole
            else f"{row['steps']} steps of {row['optimizer']}, and no parameter has a gradient",
            f"tensors: {', '.join(names[:5])}",
            *([f"{called[0].rpartition('.')[0]} is called in training all the same"] if called else []),
        ),
        advice=(
            "check that the layer is called, and that its output leads to the loss: a detach(), .data, .item() or"
            " torch.no_grad() between them cuts the gradient, and so does an argmax of it",
            "freeze on purpose what is not to be trained: requires_grad_(False)",
        ),
        try_first="probe PID grads",
    )


RULE = Rule(
    "parameters-not-updated",
    "numbers",
    "Does the optimizer change all parameters that it holds?",
    SQL,
    judge,
    (
        Threshold("share", 0.01, "share of the optimizer's parameters, unless the layer is called"),
        Threshold("changes", 50, "changes of the others needed to judge"),
        Threshold("steps", 20, "steps needed to judge"),
    ),
    explains=("loss-flat", "loss-at-chance", "layer-gradients", "gradients"),
    is_live=True,
)
