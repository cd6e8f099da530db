"""The loop goes on, and the optimizer does not step.

A guard drops batches whose gradients are not finite, and once a buffer or a weight is NaN it drops all of them: no
error, no step, and a loop that looks busy. Backward is called again and again in what is still the same step, many
times as often as in any step before. Accumulation that began with the run has always called it so often.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import seconds

__all__ = ["RULE"]

SQL = """
SELECT number, age, micro_batches, steps, usual, coalesce(most, 1) AS most FROM python.current_step, (
    SELECT count(*) AS steps, median(duration) AS usual, max(micro_batches) AS most
    FROM (FROM python.steps ORDER BY step DESC LIMIT 200))
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows or not rows[0]["steps"]:
        raise NoEvidence("no step has ended since the recorder came")
    (row,) = rows
    times, usual = row["micro_batches"], max(1, row["most"])
    if times < limits["times"] * usual or row["age"] < limits["times"] * row["usual"]:
        return
    yield Finding(
        f"the optimizer has not stepped for {seconds(row['age'])}, while backward was called {times:,} times",
        Certainty.LIKELY,
        share=1.0,
        since_step=row["number"],
        evidence=(
            f"before, backward was called at most {usual} times a step, and a step took {seconds(row['usual'])}",
        ),
        advice=(
            "see whether weights, buffers or gradients are NaN or infinite: `probe PID nan`",
            "look for what skips the step: a guard against gradients that are not finite, a scaler, a condition",
            "go back to a checkpoint from before that step, and see that the guard counts what it drops and says so",
        ),
        try_first="probe PID nan",
    )


RULE = Rule(
    "steps-skipped",
    "numbers",
    "Does the loop go on without steps of the optimizer?",
    SQL,
    of_each_rank(judge),
    (Threshold("times", 10, "how many times as many calls of backward, and seconds, as a step has had"),),
    explains=("loss-at-chance", "stalled", "job-hangs"),
    is_live=True,
)
