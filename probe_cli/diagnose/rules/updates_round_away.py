"""The optimizer's updates are too small for parameters of 16 bits: adding them changes nothing.

bfloat16 has 8 bits for the digits of a number, so a change of less than 1/512 of it is rounded away (float16: 1/4096).
An update of Adam is about as large as its learning rate, one of SGD as learning rate times gradient, divided by 1 -
momentum. How many weights are too large for it follows from their norm, as if they were distributed normally.
Parameters of float32 under autocast, or a master copy in float32, have no such limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import erfc

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT g.module, g.parameter, g.dtype, g."values", g.norm, g.weight_norm, p.optimizer, p.lr,
    (SELECT max(try_cast(options ->> 'momentum' AS DOUBLE)) FROM torch.optimizers) AS momentum,
    (SELECT count(*) FROM python.steps WHERE backward > 0) AS steps,
    (SELECT max(lr) FROM python.steps) AS max_lr,
    (SELECT arg_min(lr, step) FROM python.steps) AS first_lr,
    (SELECT arg_max(lr, step) FROM python.steps) AS last_lr
FROM torch.gradients g JOIN torch.parameters p USING (module, parameter)
WHERE g.weight_norm > 0 AND g.zeros < g."values" AND p.lr > 0 ORDER BY g.place
"""
#: Smallest part of a number that an update of it may be: half of the distance to the next one.
SMALLEST = {"bfloat16": 2.0**-9, "float16": 2.0**-12}
#: Optimizers whose updates are about as large as the learning rate, and those whose are in proportion to the gradient.
OF_RATE = frozenset(("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop"))
OF_GRADIENT = frozenset(("SGD",))


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    judged = [(row, size) for row in rows if row["dtype"] in SMALLEST and (size := _update(row)) is not None]
    if not judged:
        raise NotApplicable("no optimizer of torch holds parameters of 16 bits with gradients")
    first = judged[0][0]
    if first["steps"] < limits["steps"]:
        raise NoEvidence("the job has just begun: ask again later")
    if first["last_lr"] is not None and first["last_lr"] >= first["max_lr"] > first["first_lr"]:
        raise NoEvidence("the learning rate still rises: ask again later")
    lost = [(row, size, _lost(row, size)) for row, size in judged]
    num = sum(row["values"] for row, _ in judged)
    share = sum(part * row["values"] for row, _, part in lost) / num
    if share < limits["share"]:
        return
    row, size, part = max(lost, key=lambda one: one[2] * one[0]["values"])
    rms = row["weight_norm"] / row["values"] ** 0.5
    yield Finding(
        f"{percent(share)} of the weights are too large for updates of {size:.1g}: {row['dtype']} rounds them away",
        Certainty.LIKELY,
        share=share,
        where=f"{row['module']}.{row['parameter']}",
        evidence=(
            f"{row['module']}.{row['parameter']}: weights of {rms:.2g} (2-norm over the root of its {row['values']:,}"
            f" elements), updates of {size:.1g} by {row['optimizer']} at a learning rate of {row['lr']:.3g}",
            f"{row['dtype']} loses a change of less than 1/{1 / SMALLEST[row['dtype']]:.0f} of a number:"
            f" {percent(part)} of these weights stay as they are",
        ),
        advice=(
            "keep parameters in float32, and have autocast compute in 16 bits: torch.autocast(device,"
            " dtype=torch.bfloat16)",
            "with FSDP2: a model in float32, MixedPrecisionPolicy(param_dtype=torch.bfloat16)",
            "where memory forbids it: an optimizer with a master copy, or with stochastic rounding",
        ),
        try_first="model.float()",
    )


def _update(row: Row) -> float | None:
    """The size of an update of this parameter, by the optimizer's formula; None for other optimizers."""
    kind, lr = str(row["optimizer"]).partition("#")[0], row["lr"]
    if row["last_lr"] and row["max_lr"]:
        lr *= max(1.0, row["max_lr"] / row["last_lr"])  # a schedule that has come to its end
    if kind in OF_RATE:
        return float(lr)
    if kind not in OF_GRADIENT or not isinstance(row["norm"], float):
        return None
    gradient = row["norm"] / row["values"] ** 0.5
    return float(lr * gradient / max(0.01, 1.0 - (row["momentum"] or 0.0)))


def _lost(row: Row, size: float) -> float:
    """The share of the parameter's elements that are so large that an update of this size is lost."""
    rms = row["weight_norm"] / row["values"] ** 0.5
    return erfc(size / SMALLEST[row["dtype"]] / (rms * 2**0.5))


RULE = Rule(
    "updates-round-away",
    "numbers",
    "Are the optimizer's updates large enough for parameters of 16 bits?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.5, "share of the weights that are too large for an update"),
        Threshold("steps", 50, "steps needed to judge"),
    ),
    explains=("loss-flat", "loss-at-chance"),
    is_live=True,
)
