"""The loss rises after it had fallen.

The medians of windows of the run are compared: the newest against the lowest before it. One bad batch moves no
median. A learning rate that is too high, a schedule that began anew, data in another order or of another kind. Losses
of both signs, of several optimizers and of rollouts are not judged: they say little of what is learned. Nor is a small
one of a job that was long under way when the recorder came: of its loss hardly anything may be left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import LATE, ROLLOUTS, Limits, Row, Rule, Threshold, is_late, of_each_learner

__all__ = ["RULE"]

SQL = f"""
WITH losses AS (SELECT step, loss, lr, ntile(10) OVER (ORDER BY step) AS part FROM python.steps WHERE isfinite(loss)),
parts AS (SELECT part, min(step) AS first, max(step) AS last, median(loss) AS loss, mad(loss) AS scatter,
    median(lr) AS lr, count(*) AS steps FROM losses GROUP BY part)
SELECT recorded.*, newest, lowest, earliest.loss AS early, optimizers.*
FROM (SELECT parts AS newest FROM parts ORDER BY part DESC LIMIT 1),
     (SELECT parts AS lowest FROM parts ORDER BY loss LIMIT 1),
     (SELECT loss FROM parts ORDER BY part LIMIT 1) AS earliest,
     (SELECT count(*) FILTER (isfinite(loss)) AS steps, min(loss) FILTER (isfinite(loss)) AS least,
        {ROLLOUTS} AS rollouts, min(step) AS first, bool_and(counted) AS counted FROM python.steps) AS recorded,
     (SELECT count(DISTINCT module) AS optimizers FROM python.torch_trace WHERE stage = 'step') AS optimizers
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows or rows[0]["steps"] < limits["steps"]:
        num = rows[0]["steps"] if rows else 0
        raise NoEvidence(f"{num} losses recorded, {limits['steps']:.0f} needed: ask again later")
    (row,) = rows
    if row["least"] < 0 or row["rollouts"] or row["optimizers"] > 1:
        raise NotApplicable("losses of both signs, of several optimizers, or of rollouts")
    newest, lowest = row["newest"], row["lowest"]
    scatter = max(newest["scatter"], lowest["scatter"])
    rise = newest["loss"] - lowest["loss"]
    if is_late(row, limits) and newest["loss"] < limits["left"]:
        return
    if lowest["part"] >= newest["part"] or rise < limits["scatter"] * scatter:
        return
    if rise <= max(limits["rise"] * abs(lowest["loss"]), limits["fall"] * (row["early"] - lowest["loss"]), 0.0):
        return
    before, after = lowest["lr"] or 0.0, newest["lr"] or 0.0
    is_raised = after > limits["raised"] * before > 0
    yield Finding(
        f"the loss rises: {lowest['loss']:.4g} around step {lowest['last']}, {newest['loss']:.4g} now"
        + (f"; the learning rate rose from {before:.3g} to {after:.3g}" if is_raised else ""),
        Certainty.LIKELY,
        since_step=lowest["last"],
        evidence=(
            f"medians of tenths of {row['steps']} steps; scatter within them {scatter:.3g}",
            f"learning rate then {before:.3g}, now {after:.3g}",
        ),
        advice=(
            "lower the learning rate, or clip gradients, from a checkpoint before that step",
            "look at gradients by layer: `probe PID grads`",
            "look at the data of those steps: order, source, and whether an epoch began there",
            "see that it is not meant: harder data, or a part of the loss that a schedule raises (KL annealing)",
        ),
        try_first='probe PID query "SELECT step, loss, lr, grad_norm FROM python.steps ORDER BY step DESC LIMIT 200"',
    )


RULE = Rule(
    "loss-rises",
    "numbers",
    "Does the loss rise after it had fallen?",
    SQL,
    of_each_learner(judge),
    (
        Threshold("rise", 0.2, "rise over the lowest window, as a share of it"),
        Threshold("fall", 0.03, "rise as a share of what the loss had fallen: one that is nearly 0 may double"),
        Threshold("scatter", 4.0, "rise as a multiple of the scatter within a window"),
        Threshold("raised", 2.0, "learning rate over the one of the lowest window that is named beside the rise"),
        LATE,
        Threshold("left", 1e-2, "loss below which a job whose loss at first is not known is not judged"),
        Threshold("steps", 100, "losses needed to judge"),
    ),
)
