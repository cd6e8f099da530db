"""Python's garbage collector stops the training.

A collection of all objects looks at every container in the process; while it runs, no Python code does. Large
training scripts have millions of them. What is kept between steps can be frozen out of its sight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent, seconds

__all__ = ["RULE"]

SQL = """
WITH recent AS (FROM python.steps ORDER BY step DESC LIMIT 200),
extent AS (SELECT count(*) AS steps, min(ts) AS began, max(ts) AS ended, sum(duration) AS lasted FROM recent)
SELECT any_value(steps) AS steps, any_value(lasted) AS lasted, count(duration) AS pauses, sum(duration) AS paused,
    max(duration) AS longest, sum(collected) AS collected
FROM extent LEFT JOIN (SELECT ts, duration, collected FROM python.gc) AS pauses ON ts BETWEEN began AND ended
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if (row["steps"] or 0) < limits["steps"]:
        raise NoEvidence(f"{row['steps'] or 0} steps recorded, {limits['steps']:.0f} needed: ask again later")
    share = (row["paused"] or 0.0) / row["lasted"]
    others = (row["paused"] or 0.0) - (row["longest"] or 0.0)  # one long collection says nothing of how often it comes
    if others / row["lasted"] < limits["share"]:
        return
    yield Finding(
        f"the garbage collector stops the training {percent(share)} of the time",
        Certainty.CERTAIN,
        cost_s=row["paused"] / row["steps"],
        share=share,
        evidence=(
            f"{row['pauses']} collections in {row['steps']} steps, {seconds(row['paused'])} together, the longest"
            f" {seconds(row['longest'])}, {row['collected']:.0f} objects freed",
        ),
        advice=(
            "call gc.freeze() after the first steps: what lives for ever is not looked at again",
            "collect by hand, on all ranks at the same step: gc.disable(), and gc.collect() every N steps",
            "find what makes so many objects: `probe PID profile --cpu 5s`",
        ),
        try_first="import gc; gc.collect(); gc.freeze()",
    )


RULE = Rule(
    "collector-pauses",
    "speed",
    "Does Python's garbage collector stop the training?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.05, "share of the time in collections, the longest one left out"),
        Threshold("steps", 20, "steps needed to judge"),
    ),
    on_host=True,
)
