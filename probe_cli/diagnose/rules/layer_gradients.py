"""Gradients explode or vanish from layer to layer.

The gradient of each weight is read once, at the end of a step, and divided by the root of its size. Between the first
layers and the last a factor of a hundred is common; a factor of ten thousand means that the first layers learn nothing,
or that they get all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from statistics import median

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, gradients_by_model, of_each_rank

__all__ = ["RULE"]

#: Smaller gradients in the last layers are not compared, nor those of a model that has none larger than Adam's epsilon:
#: a policy that has settled has such.
NOTHING, EPSILON = 1e-10, 1e-8
SQL = """
SELECT place, module, parameter, "values", zeros, norm, read_step,
    (SELECT count(*) FROM python.steps WHERE backward > 0) AS steps
FROM torch.gradients ORDER BY place
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    read = max(map(_sizes, gradients_by_model(rows, limits)), key=len)
    if len(read) < limits["layers"]:
        raise NotApplicable(f"{len(read)} layers with gradients: too few to compare")
    third = max(1, len(read) // 3)
    first, last = read[:third], read[-third:]
    early, late = median(size for _, size in first), median(size for _, size in last)
    if late < NOTHING or max(early, late) < EPSILON or not early:
        return  # a job that has converged; those that are exactly 0 are the finding of another rule
    ratio = early / late
    if 1 / limits["ratio"] < ratio < limits["ratio"]:
        return
    vanish = ratio < 1
    row = min(first, key=lambda one: one[1])[0] if vanish else max(first, key=lambda one: one[1])[0]
    verb = "vanish" if vanish else "explode"
    yield Finding(
        f"gradients {verb} from layer to layer: in the first layers they are {ratio:.1g} times those in the last",
        Certainty.LIKELY,
        share=0.5,
        where=str(row["module"]),
        evidence=tuple(
            f"{one['module']}.{one['parameter']}: {size:.2g} (2-norm over the root of its {one['values']:,} elements)"
            for one, size in (read[0], read[len(read) // 2], read[-1])
        ),
        advice=(
            "use ReLU, GELU or SiLU instead of sigmoid or tanh between layers",
            "add residual connections, and LayerNorm or RMSNorm before each block",
            "initialise weights for the activation: torch.nn.init.kaiming_normal_, or xavier_normal_ for tanh",
            *(() if vanish else ("clip gradients: clip_grad_norm_(parameters, 1.0)",)),
        ),
        try_first="probe PID grads",
    )


def _sizes(rows: Sequence[Row]) -> list[tuple[Row, float]]:
    """The weights, each with the size of its gradient."""
    weights = [row for row in rows if row["parameter"] != "bias" and row["norm"] is not None and row["values"] > 1]
    sizes = [(row, float(row["norm"]) / row["values"] ** 0.5) for row in weights]
    return [(row, size) for row, size in sizes if isfinite(size)]


RULE = Rule(
    "layer-gradients",
    "numbers",
    "Do gradients explode or vanish from layer to layer?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("ratio", 1e4, "gradients of the first layers over those of the last, or the inverse"),
        Threshold("layers", 4, "weights needed to compare"),
        Threshold("steps", 10, "steps needed to judge"),
    ),
    explains=("gradients", "loss-flat"),
    is_live=True,
)
