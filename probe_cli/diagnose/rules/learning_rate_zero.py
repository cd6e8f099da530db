"""The learning rate is zero.

A schedule that has come to its end, was stepped per batch though it counts epochs, or a warm-up that never began: the
job computes, and nothing is learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT count(lr) AS steps, max(lr) AS highest, max(step) AS last,
    (SELECT max(lr) FROM (FROM python.steps WHERE lr IS NOT NULL ORDER BY step DESC LIMIT 20)) AS recent,
    max(step) FILTER (lr > 0) AS last_above, min(step) AS first
FROM python.steps
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["steps"]:
        raise NoEvidence("no learning rate is recorded: no optimizer of torch has stepped")
    if row["steps"] < limits["steps"] or row["recent"] > limits["lr"]:
        return
    fell = row["highest"] > limits["lr"]
    since = row["last_above"] + 1 if fell else row["first"]
    yield Finding(
        f"the learning rate is {row['recent']:.3g} since step {since}: nothing is learned",
        Certainty.CERTAIN,
        share=1.0,
        since_step=since,
        evidence=(f"highest learning rate recorded: {row['highest']:.3g}", f"newest step: {row['last']}"),
        advice=(
            "look at the schedule: its number of steps, and whether scheduler.step() runs per batch or per epoch",
            "a resumed job needs the scheduler's state as well",
        ),
        try_first='probe PID query "SELECT step, lr, loss FROM python.steps ORDER BY step DESC LIMIT 50"',
    )


RULE = Rule(
    "learning-rate-zero",
    "numbers",
    "Is the learning rate above zero?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("lr", 1e-12, "learning rate that counts as zero"),
        Threshold("steps", 5, "steps needed to judge"),
    ),
)
