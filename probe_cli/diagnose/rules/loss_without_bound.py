"""The loss falls below zero and on, faster and faster.

A loss that is maximised by mistake (a wrong sign, negative weights of samples, an entropy or a log-likelihood that can
be made as large as one likes) has no lowest value: it falls, the outputs grow, and nothing is learned. A negative
log-likelihood of many dimensions may be far below zero, too, but its fall slows down. So the loss must be far below
zero, several times as far as in the first tenth of the run, and the last three tenths must have added as much as
the first three.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
WITH losses AS (SELECT step, loss, ntile(10) OVER (ORDER BY step) AS part FROM python.steps WHERE isfinite(loss)),
parts AS (SELECT part, min(step) AS first, median(loss) AS loss FROM losses GROUP BY part)
SELECT (SELECT count(*) FROM losses) AS steps, list(loss ORDER BY part) AS parts, min(first) AS first FROM parts
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if row["steps"] < limits["steps"]:
        raise NoEvidence(f"{row['steps']} losses recorded, {limits['steps']:.0f} needed: ask again later")
    parts = row["parts"]
    first, last = parts[0], parts[-1]
    if last > -limits["low"] or last > limits["grown"] * min(first, 0.0):
        return
    falls = all(later < earlier for earlier, later in pairwise(parts))
    if not falls or parts[-4] - last < parts[0] - parts[3]:
        return
    yield Finding(
        f"the loss falls without bound: {first:.3g} at first, {last:.3g} now",
        Certainty.LIKELY,
        since_step=row["first"],
        evidence=(
            f"medians of tenths of {row['steps']} steps: {', '.join(f'{part:.3g}' for part in parts)}",
            "the fall does not slow down",
        ),
        advice=(
            "look for a wrong sign: what is to be large enters a loss with a minus, what is to be small without one",
            "where samples or terms have weights, let none be negative: subtract a baseline, or clamp them",
            "bound what can grow for ever: a log-likelihood whose scale has no least value, an entropy, a margin",
        ),
        try_first='probe PID query "SELECT step, loss, grad_norm FROM python.steps ORDER BY step DESC LIMIT 200"',
    )


RULE = Rule(
    "loss-without-bound",
    "numbers",
    "Does the loss fall below zero without end?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("low", 100.0, "how far below zero the newest losses are at least"),
        Threshold("grown", 3.0, "how many times as far as the first ones"),
        Threshold("steps", 100, "losses needed to judge"),
    ),
    explains=("gradients", "layer-gradients", "learning-rate-too-high"),
)
