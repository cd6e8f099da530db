"""The activations are dead: no weight gets a gradient.

If every input of a ReLU is negative, its output and its gradient are exactly zero, for every batch. Where that holds
for a whole layer, nothing before it learns, nor does the layer behind it, which multiplies zeros: of all parameters the
last biases alone still have gradients. Inputs that are not normalised, a learning rate far too high at the start, and
large negative biases do that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT module, parameter, "values", zeros, read_step, (SELECT count(*) FROM python.steps WHERE backward > 0) AS steps
FROM torch.gradients WHERE "values" > 1 ORDER BY place
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no gradient could be read: no step has ended meanwhile, or no model was found")
    if rows[0]["steps"] < limits["steps"]:
        raise NoEvidence("the job has just begun: ask again later")
    models: dict[str, list[Row]] = {}
    for row in rows:
        models.setdefault(str(row["module"]).partition(".")[0], []).append(row)
    for name, told in models.items():
        weights = [row for row in told if row["parameter"] != "bias"]
        others = [row for row in told if row["parameter"] == "bias" and row["zeros"] < row["values"]]
        if len(weights) < limits["layers"] or not others or any(row["zeros"] < row["values"] for row in weights):
            continue
        yield Finding(
            f"the activations of {name} are dead: every gradient of its {len(weights)} weights is exactly 0",
            Certainty.CERTAIN,
            share=1.0,
            where=str(weights[0]["module"]),
            evidence=tuple(
                f"{row['module']}.{row['parameter']}: {row['zeros']:,} of {row['values']:,} gradients are 0"
                for row in (weights[0], weights[-1], others[-1])
            ),
            advice=(
                "start anew from a checkpoint before it, or from the beginning: dead activations do not come back",
                "normalise the inputs: images of 0 to 255 belong between 0 and 1, or have mean 0 and deviation 1",
                "lower the learning rate, and warm it up; clip gradients",
                "use LeakyReLU, GELU or SiLU, or a normalisation layer before each activation",
            ),
            try_first="probe PID grads",
        )


RULE = Rule(
    "activations-dead",
    "numbers",
    "Does any weight get a gradient?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("layers", 2, "weights needed to judge"),
        Threshold("steps", 10, "steps needed to judge"),
    ),
    explains=("layer-gradients", "loss-flat", "gradients", "parameters-not-updated"),
    is_live=True,
)
