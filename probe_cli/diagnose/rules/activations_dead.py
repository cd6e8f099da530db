"""The activations are dead: no gradient reaches the layers before them.

If every input of a ReLU is negative, its output and its gradient are exactly zero, for every batch. Where that holds
for a whole layer, nothing before it learns, and the layer behind it multiplies zeros: the gradient of its weight is
exactly zero, that of its bias is not. Inputs that are not normalised, a learning rate far too high at the start, and
large negative biases do that. A small batch may miss the few that are left: three steps must tell the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from probe_cli.diagnose.finding import Certainty, Finding
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, gradients_by_model, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT module, parameter, "values", zeros, (SELECT count(*) FROM python.steps WHERE backward > 0) AS steps
FROM torch.gradients WHERE "values" > 1 OR parameter = 'bias' ORDER BY place
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    for told in gradients_by_model(rows, limits):
        weights = [row for row in told if row["parameter"] != "bias"]
        fed = {row["module"] for row in told if row["parameter"] == "bias" and row["zeros"] < row["values"]}
        num_dead = next((at for at, row in enumerate(weights) if row["zeros"] < row["values"]), len(weights))
        behind = next((at for at, row in enumerate(weights[:num_dead]) if row["module"] in fed), 0)
        if behind < limits["layers"]:
            continue
        module = weights[behind]["module"]
        yield Finding(
            f"the activations before {module} are dead: its input is all 0, and no gradient comes through it",
            Certainty.LIKELY,
            share=1.0,
            where=str(module),
            evidence=(
                *(f"{one['module']}.{one['parameter']}: all gradients are 0" for one in weights[:behind][-3:]),
                f"{module}: those of its weight are all 0, those of its bias are not",
            ),
            advice=(
                "start anew from a checkpoint before it, or from the beginning: dead activations do not come back",
                "normalise the inputs: images of 0 to 255 belong between 0 and 1, or have mean 0 and deviation 1",
                "lower the learning rate, and warm it up; clip gradients",
                "use LeakyReLU, GELU or SiLU, or a normalisation layer before each activation",
            ),
            try_first="probe PID grads",
        )


MORE_LOOKS = 2


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    """Those that the gradients of later steps tell, too."""
    return [
        one
        for one in found
        if await job.once(f"rank {one.ranks[0]}, dead before {one.where}", partial(_stays, job, one, limits))
    ]


async def _stays(job: Job, one: Finding, limits: Limits) -> bool:
    for _ in range(MORE_LOOKS):
        rows = await job.rows(SQL, one.ranks[0])
        if rows and one.where not in {again.where for again in judge(rows, limits)}:
            return False
    return True


RULE = Rule(
    "activations-dead",
    "numbers",
    "Do gradients reach the first layers?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("layers", 1, "weights before the dead activations"),
        Threshold("steps", 10, "steps needed to judge"),
    ),
    explains=(
        "gradients-zero",
        "layer-gradients",
        "loss-flat",
        "loss-at-chance",
        "gradients",
        "parameters-not-updated",
    ),
    is_live=True,
    look=look,
)
