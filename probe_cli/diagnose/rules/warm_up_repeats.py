"""The learning rate rises step by step, falls back to where it began, and rises again.

A schedule that is given the place in the epoch, and not that in the whole run, warms up anew in each epoch: the
learning rate never gets to what it was meant to be. Judged is the learning rate that was in force, whoever set it: one
that only rises between falls of equal distance and from the same height. A cosine with restarts falls slowly and rises
at once, and a cyclic schedule goes down as slowly as up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
WITH course AS (SELECT step, lr, lag(lr) OVER (ORDER BY step) AS before FROM python.steps WHERE lr IS NOT NULL),
falls AS (SELECT step, before AS peak, lr, step - lag(step) OVER (ORDER BY step) AS gap FROM course
    WHERE lr < 0.25 * before)
SELECT (SELECT count(*) FROM course) AS steps, (SELECT count(*) FROM course WHERE lr < 0.999 * before) AS down,
    (SELECT count(*) FROM course WHERE lr > before) AS up,
    count(*) AS falls, median(gap) AS gap, min(gap) AS shortest, max(gap) AS longest, min(peak) AS lowest_peak,
    max(peak) AS peak, min(lr) AS low, min(step) AS since
FROM falls
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["steps"]:
        raise NotApplicable("no learning rate is recorded")
    if row["steps"] < limits["steps"]:
        raise NoEvidence(f"{row['steps']} learning rates recorded, {limits['steps']:.0f} needed: ask again later")
    if row["falls"] < limits["falls"] or row["down"] > row["falls"] or row["up"] < 0.5 * row["steps"]:
        return
    is_even = row["longest"] - row["shortest"] <= max(2, 0.02 * row["gap"]) and row["gap"] >= limits["length"]
    if not is_even or row["lowest_peak"] < 0.9 * row["peak"]:
        return
    yield Finding(
        f"the learning rate rises to {row['peak']:.3g} and falls back to {row['low']:.3g} every {row['gap']:.0f} steps:"
        " a warm-up that begins anew",
        Certainty.LIKELY,
        share=0.5,
        since_step=row["since"],
        evidence=(
            f"{row['falls']} falls in {row['steps']:,} steps, {row['shortest']} to {row['longest']} steps apart; it"
            f" rises in {row['up']:,} steps",
        ),
        advice=(
            "give the schedule the place in the whole run: epoch + batch / len(loader), or the number of the step",
            "make the scheduler once, before the loop over the epochs",
        ),
        try_first="adjust_learning_rate(optimizer, epoch + batch / len(loader))",
    )


RULE = Rule(
    "warm-up-repeats",
    "numbers",
    "Does the warm-up of the learning rate end?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("steps", 50, "steps with a learning rate needed to judge"),
        Threshold("falls", 4, "falls needed to judge"),
        Threshold("length", 5, "steps between two falls, at least"),
    ),
    explains=("learning-rate-zero", "loss-flat", "loss-at-chance", "loss-volatile", "loss-spikes"),
)
