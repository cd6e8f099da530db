"""Calls without gradients take most of the time.

Modules that are called without gradients between the updates are an evaluation, or the forward of a teacher, or the
episodes of a game that are played by a function of any name. Where a function named generate… or rollout… makes them
they are told apart, and are another rule's: `generation-dominates`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent, seconds

__all__ = ["RULE"]

SQL = """
SELECT count(*) AS steps, sum(duration) AS lasted, sum(generation) AS generation, sum(evaluation) AS evaluation,
    count_if(evaluation > 0) AS times,
    sum(coalesce(forward, 0) + coalesce(backward, 0) + coalesce(optimizer, 0)) AS updating
FROM (FROM python.steps ORDER BY step DESC LIMIT 500)
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["times"]:
        raise NotApplicable("no module was called without gradients between the steps")
    if row["generation"]:
        raise NotApplicable("what is called without gradients generates: generation-dominates judges it")
    share = row["evaluation"] / row["lasted"]
    if row["steps"] < limits["steps"] or row["times"] < limits["times"] or share < limits["share"]:
        return
    yield Finding(
        f"calls without gradients take {percent(share)} of the time, the updates"
        f" {percent(row['updating'] / row['lasted'])}",
        Certainty.LIKELY,
        cost_s=row["evaluation"] / row["steps"],
        share=share,
        where="evaluation",
        evidence=(f"{row['times']} of {row['steps']} steps, {seconds(row['evaluation'] / row['times'])} in each",),
        advice=(
            "of rollouts: run many environments at a time, and call the policy on all of them at once",
            "of an evaluation: evaluate less often, or on fewer batches",
            "of a teacher: keep its outputs, if the inputs come again",
        ),
        try_first="probe PID profile --cpu 5s",
    )


RULE = Rule(
    "evaluation-dominates",
    "speed",
    "Do calls without gradients take most of the time?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.75, "share of the time spent in calls without gradients"),
        Threshold("times", 3, "steps with such calls needed to judge"),
        Threshold("steps", 50, "steps needed to judge"),
    ),
    explains=("pauses", "slower-than-best"),
)
