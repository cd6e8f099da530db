"""The job is slower than it was.

The newest 50 steps are held against the best 50 in a row that are still recorded. Something has changed since: a
throttled clock, a neighbour on the host, longer sequences, a growing list that is walked in each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent, seconds

__all__ = ["RULE"]

PHASES = ("data_wait", "forward", "backward", "optimizer", "evaluation", "generation", "other")
SQL = f"""
WITH windows AS (
    SELECT step // 50 AS w, min(step) AS first, max(step) AS last, count(*) AS steps,
        median(duration) AS usual, {", ".join(f"median(coalesce({name}, 0)) AS {name}" for name in PHASES)}
    FROM python.steps WHERE step > (SELECT min(step) + 10 FROM python.steps)
    GROUP BY ALL HAVING count(*) >= 40
)
SELECT (SELECT count(*) FROM windows) AS windows, newest, best,
    (SELECT min(first) FROM windows WHERE usual > 1.1 * best.usual AND first > best.last) AS since
FROM (SELECT windows AS newest FROM windows ORDER BY w DESC LIMIT 1),
     (SELECT windows AS best FROM windows ORDER BY usual LIMIT 1)
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows or rows[0]["windows"] < limits["windows"]:
        raise NoEvidence(f"less than {limits['windows']:.0f} times 50 steps are recorded: ask again later")
    newest, best = rows[0]["newest"], rows[0]["best"]
    slower = newest["usual"] / best["usual"] - 1 if best["usual"] else 0.0
    if slower < limits["slower"]:
        return
    grown = max(PHASES, key=lambda name: newest[name] - best[name])
    cost = newest["usual"] - best["usual"]
    yield Finding(
        f"a step takes {percent(slower)} longer than in this run's best window, most of it in {grown}",
        Certainty.LIKELY,
        cost_s=cost,
        share=cost / newest["usual"],
        since_step=rows[0]["since"],
        evidence=(
            f"median of steps {newest['first']} to {newest['last']}: {seconds(newest['usual'])};"
            f" of {best['first']} to {best['last']}: {seconds(best['usual'])}",
            f"{grown}: {seconds(best[grown])} then, {seconds(newest[grown])} now",
        ),
        advice=(
            "put the change beside what happened then: evaluation, checkpoint, recompilation, another job on the host",
            "look where the time goes now: `probe PID profile --cpu 5s`",
            'look at the clocks: `probe PID query "FROM gpu.samples ORDER BY ts DESC LIMIT 20"`',
        ),
        try_first="probe PID profile --cpu 5s",
    )


RULE = Rule(
    "slower-than-best",
    "speed",
    "Is the job slower than in its own best window?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("slower", 0.25, "how much longer the median step takes than in the best window"),
        Threshold("windows", 3, "windows of 50 steps needed to judge"),
    ),
)
