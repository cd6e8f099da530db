"""GradScaler skips the optimizer again and again.

A skipped step now and then is how the scale is found. When a tenth of the steps is skipped, gradients overflow in fp16
whatever the scale, and the batches are wasted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT count(*) AS steps, count(*) FILTER (skipped) AS skipped, min(step) FILTER (skipped) AS since,
    sum(duration) FILTER (skipped) AS lost
FROM (FROM python.steps ORDER BY step DESC LIMIT 200)
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if row["steps"] < limits["steps"]:
        raise NoEvidence(f"{row['steps']} steps recorded, {limits['steps']:.0f} needed: ask again later")
    share = row["skipped"] / row["steps"]
    if share < limits["share"]:
        return
    yield Finding(
        f"GradScaler skipped the optimizer on {percent(share)} of the steps",
        Certainty.CERTAIN,
        cost_s=row["lost"] / row["steps"],
        share=share,
        since_step=row["since"],
        evidence=(f"{row['skipped']} of {row['steps']} steps skipped",),
        advice=(
            "use bf16 where the hardware has it: it needs no scaler",
            "find what overflows: `probe PID nan --hunt`",
            "lower the learning rate, clip gradients after scaler.unscale_(optimizer)",
        ),
        try_first="torch.autocast(device, dtype=torch.bfloat16)",
    )


RULE = Rule(
    "scaler-skips",
    "numbers",
    "Does GradScaler skip many steps?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.10, "share of the steps that are skipped"),
        Threshold("steps", 50, "steps needed to judge"),
    ),
)
