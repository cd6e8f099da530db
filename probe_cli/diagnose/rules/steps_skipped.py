"""The loop goes on, and the optimizer does not step.

A guard drops batches whose loss or gradients are not finite, and once a buffer or a weight is NaN it drops all of them:
no error, no step, and a loop that looks busy. Backward is called again and again in what is still the same step, many
times as often as in any step before; or the model is called in training mode for many times as long as in any step, and
no backward follows. Accumulation that began with the run has always called it so often.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import seconds

__all__ = ["RULE"]

SQL = """
SELECT number, age, micro_batches, modules, steps, usual, coalesce(most, 1) AS most, longest,
    (SELECT bool_or(training) FROM torch.modules WHERE depth = 0 AND trainable > 0) AS training
FROM python.current_step, (
    SELECT count(*) AS steps, median(duration) AS usual, max(micro_batches) AS most, max(forward) AS longest
    FROM (FROM python.steps ORDER BY step DESC LIMIT 200))
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows or not rows[0]["steps"]:
        raise NoEvidence("no step has ended since the recorder came")
    (row,) = rows
    age, usual = row["age"], max(1, row["most"])
    if age < limits["times"] * row["usual"]:
        return
    if row["micro_batches"] >= limits["times"] * usual:
        calls, is_sure = f"backward was called {row['micro_batches']:,} times", True
        before = f"backward was called at most {usual} times a step"
    elif _calls_without_backward(row, limits):
        calls, is_sure = f"the model ran for {seconds(row['modules'])} and no backward followed", age > limits["sure"]
        before = f"the model ran for at most {seconds(row['longest'])} a step"
    else:
        return
    yield Finding(
        f"the optimizer has not stepped for {seconds(age)}, while {calls}",
        Certainty.LIKELY if is_sure else Certainty.POSSIBLE,
        share=1.0,
        since_step=row["number"],
        evidence=(f"before, {before}, and a step took {seconds(row['usual'])}",),
        advice=(
            "see whether weights, buffers or gradients are NaN or infinite: `probe PID nan`",
            "look for what skips the step: a guard against gradients that are not finite, a scaler, a condition",
            "go back to a checkpoint from before that step, and see that the guard counts what it drops and says so",
        ),
        try_first="probe PID nan",
    )


def _calls_without_backward(row: Row, limits: Limits) -> bool:
    """Whether the model is called again and again in training mode; a validation with gradients runs in the other."""
    if row["micro_batches"] or not row["training"] or not row["longest"]:
        return False
    is_long: bool = row["age"] >= limits["seconds"] and (row["modules"] or 0.0) >= limits["times"] * row["longest"]
    return is_long


RULE = Rule(
    "steps-skipped",
    "numbers",
    "Does the loop go on without steps of the optimizer?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("times", 10, "how many times as many calls of backward, or as long in the model, as a step has had"),
        Threshold("seconds", 10, "seconds without a step from which calls of the model without backward count"),
        Threshold("sure", 30, "seconds of such calls that are hardly meant"),
    ),
    explains=("stalled", "job-hangs"),
    is_live=True,
)
