"""The learning rate is zero, or has fallen to next to nothing.

A schedule that has come to its end, was stepped per batch though it counts epochs, or a warm-up that never began: the
job computes, and nothing is learned. The last steps of a cosine or a line are not meant: a learning rate that has been
below a hundredth of its highest for a sixth of the steps has come down too fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
WITH top AS (SELECT max(lr) AS highest, arg_max(step, lr) AS peak FROM python.steps)
SELECT count(lr) AS steps, any_value(highest) AS highest, max(step) AS last,
    (SELECT max(lr) FROM (FROM python.steps WHERE lr IS NOT NULL ORDER BY step DESC LIMIT 20)) AS recent,
    max(step) FILTER (lr > 0) AS last_above, min(step) AS first,
    count(*) FILTER (step > peak AND lr < highest / 100) AS low,
    min(step) FILTER (step > peak AND lr < highest / 100) AS low_since
FROM python.steps, top
"""
ADVICE = (
    "look at the schedule: its number of steps, and whether scheduler.step() runs per batch or per epoch",
    "a resumed job needs the scheduler's state as well",
)
TRY_FIRST = 'probe PID query "SELECT step, lr, loss FROM python.steps ORDER BY step DESC LIMIT 50"'


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["steps"]:
        raise NoEvidence("no learning rate is recorded: no optimizer of torch has stepped")
    if row["steps"] < limits["steps"]:
        return
    if row["recent"] > limits["lr"]:
        if row["recent"] < limits["part"] * row["highest"] and row["low"] > limits["share"] * row["steps"]:
            yield _next_to_nothing(row)
        return
    fell = row["highest"] > limits["lr"]
    since = row["last_above"] + 1 if fell else row["first"]
    yield Finding(
        f"the learning rate is {row['recent']:.3g} since step {since}: nothing is learned",
        Certainty.CERTAIN,
        share=1.0,
        since_step=since,
        evidence=(f"highest learning rate recorded: {row['highest']:.3g}", f"newest step: {row['last']}"),
        advice=ADVICE,
        try_first=TRY_FIRST,
    )


def _next_to_nothing(row: Row) -> Finding:
    return Finding(
        f"the learning rate has fallen to {row['recent']:.3g}, from {row['highest']:.3g}: hardly anything is learned",
        Certainty.LIKELY,
        share=1.0,
        since_step=row["low_since"],
        evidence=(f"below a hundredth of its highest for {row['low']} of {row['steps']} recorded steps",),
        advice=ADVICE,
        try_first=TRY_FIRST,
    )


RULE = Rule(
    "learning-rate-zero",
    "numbers",
    "Is the learning rate above zero?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("lr", 1e-12, "learning rate that counts as zero"),
        Threshold("part", 3e-4, "part of the highest learning rate that counts as next to nothing"),
        Threshold("share", 0.16, "share of the steps with less than a hundredth of the highest"),
        Threshold("steps", 5, "steps needed to judge"),
    ),
    explains=("loss-flat", "loss-at-chance"),
)
