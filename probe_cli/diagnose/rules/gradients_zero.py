"""The gradient of some weights is exactly zero in every step, and that of others is not.

Rounding, sign, argmax and comparisons have a derivative of 0: what is quantised or selected by them without a
straight-through estimator gets a gradient that is there and says nothing. So does what is multiplied by 0, or clamped
outside its range. The optimizer steps, and at most decays such weights. An expert or a head that a batch did not use
has a gradient of 0 once: those count whose gradients are 0 in several steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, gradients_by_model, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT module, parameter, "values", zeros, read_step, (SELECT count(*) FROM python.steps WHERE backward > 0) AS steps
FROM torch.gradients WHERE "values" > 1 AND parameter <> 'bias' ORDER BY place
"""
#: Further questions, each about other steps.
MORE_LOOKS = 5


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    for told in gradients_by_model(rows, limits):
        zero = [row for row in told if row["zeros"] == row["values"]]
        share = sum(row["values"] for row in zero) / sum(row["values"] for row in told)
        if not zero or len(zero) == len(told) or share < limits["share"]:
            continue
        names = _names(zero)
        more = f" and {len(names) - 1} more" if names[1:] else ""
        yield Finding(
            f"the gradient of {names[0]}{more} is exactly 0 in every step",
            Certainty.SUSPECTED,  # this batch may not have used them
            share=share,
            where=names[0],
            evidence=(
                f"tensors: {', '.join(names[:5])}" + (" and more" if names[5:] else ""),
                f"{percent(share)} of the values whose gradients were read; those of {len(told) - len(zero)} other"
                " weights are not 0",
            ),
            advice=(
                "look for round(), sign(), argmax() or a comparison between them and the loss: a straight-through"
                " estimator passes the gradient on, x + (x.round() - x).detach()",
                "look for a factor or a mask of 0, and for a clamp whose input is outside its range",
                "freeze on purpose what is not to be trained: requires_grad_(False)",
            ),
            try_first="probe PID grads",
        )


def _names(rows: Iterable[Row]) -> list[str]:
    return [f"{row['module']}.{row['parameter']}" for row in rows]


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    """Those that the gradients of later steps tell, too."""
    return [
        replace(one, certainty=Certainty.LIKELY)
        for one in found
        if await job.once(f"rank {one.ranks[0]}, no gradient at {one.where}", partial(_stays, job, one, limits))
    ]


async def _stays(job: Job, one: Finding, limits: Limits) -> bool:
    steps: set[int] = set()
    for _ in range(MORE_LOOKS):
        rows = await job.rows(SQL, one.ranks[0])
        row = next((row for row, name in zip(rows, _names(rows), strict=True) if name == one.where), None)
        if row is not None and row["zeros"] < row["values"]:
            return False
        if row is not None:
            steps.add(row["read_step"])
    if len(steps) < limits["seen"]:
        raise NoEvidence(f"gradients of {len(steps)} further steps were read, {limits['seen']:.0f} needed")
    return True


RULE = Rule(
    "gradients-zero",
    "numbers",
    "Do all weights that have a gradient learn from it?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.01, "share of the values whose gradients are read"),
        Threshold("steps", 20, "steps needed to judge"),
        Threshold("seen", 3, "further steps whose gradients are 0"),
    ),
    explains=("layer-gradients", "loss-flat", "loss-at-chance", "gradients"),
    is_live=True,
    look=look,
)
