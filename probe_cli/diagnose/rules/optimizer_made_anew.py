"""The job makes its optimizer anew in each step.

Momentum and the averages of Adam are in the optimizer: a new one begins with none of them, and Adam's first update is
as large as the learning rate for each weight, whatever its gradient. An optimizer that keeps nothing (SGD without
momentum) loses nothing. One that is made for some steps of a task, or whose step calls a closure many times (LBFGS), is
no fault by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT count(*) AS steps, count(*) FILTER (new_optimizer) AS anew, max(step) FILTER (new_optimizer) AS last
FROM (FROM python.steps WHERE optimizer > 0 AND micro_batches <= 1 ORDER BY step DESC LIMIT 500)
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    row = rows[0]
    if row["steps"] < limits["steps"]:
        raise NotApplicable("too few steps of an optimizer of torch with one backward each")
    share = row["anew"] / row["steps"]
    if share < limits["share"]:
        return
    yield Finding(
        "the optimizer is made anew in each step: its momentum and averages are lost",
        Certainty.LIKELY,
        share=share,
        where="the line that makes the optimizer",
        evidence=(
            f"in {row['anew']} of the last {row['steps']} steps the optimizer of the step before was gone"
            f" ({percent(share)}), the last time in step {row['last']}",
        ),
        advice=(
            "make it once, before the loop, and pass it to the function that takes the step",
            "change a learning rate in place: optimizer.param_groups[0]['lr'] = lr, or with a scheduler",
            "add parameters that come later to the one there is: optimizer.add_param_group({'params': new})",
        ),
        try_first="optimizer = torch.optim.AdamW(model.parameters(), lr)  # once, before the loop",
    )


RULE = Rule(
    "optimizer-made-anew",
    "numbers",
    "Does the job keep its optimizer from step to step?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.9, "share of the steps in which the optimizer was new"),
        Threshold("steps", 50, "steps needed to judge"),
    ),
    explains=("loss-flat", "loss-at-chance", "loss-volatile"),
)
