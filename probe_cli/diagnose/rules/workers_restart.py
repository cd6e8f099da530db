"""The data loader starts its workers anew in every epoch.

Without `persistent_workers=True` all worker processes end with an epoch, and the next one waits until new ones have
started, imported and filled their queues. With short epochs that is much of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent, seconds

__all__ = ["RULE"]

SQL = """
WITH recent AS (FROM python.steps WHERE data_wait IS NOT NULL ORDER BY step DESC LIMIT 500),
usual AS (SELECT median(data_wait) AS usual, median(duration) AS step FROM recent),
long AS (SELECT recent.* FROM recent, usual WHERE data_wait > greatest(10 * usual, 2 * usual.step, 0.02))
SELECT loaders.*, (SELECT count(*) FROM recent) AS steps, (SELECT sum(duration) FROM recent) AS lasted,
    (SELECT count(*) FROM long) AS starts, (SELECT sum(data_wait) FROM long) AS waited,
    (SELECT sum(data_wait) FROM recent) AS all_waits,
    (SELECT median(gap) FROM (SELECT step - lag(step) OVER (ORDER BY step) AS gap FROM long)) AS every
FROM (SELECT any_value(place) AS place, max(num_workers) AS num_workers FROM torch.dataloaders
    WHERE num_workers > 0 AND NOT persistent_workers HAVING count(*) > 0) AS loaders
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no data loader starts workers anew")
    (row,) = rows
    share = (row["waited"] or 0.0) / row["lasted"] if row["lasted"] else 0.0
    if row["starts"] < limits["starts"] or share < limits["share"] or row["waited"] < 0.6 * row["all_waits"]:
        return
    yield Finding(
        f"the data loader starts its {row['num_workers']} workers anew every {row['every']:.0f} steps, and the step"
        f" waits for them: {percent(share)} of the time",
        Certainty.CERTAIN,
        cost_s=row["waited"] / row["steps"],
        share=share,
        where=str(row["place"] or ""),
        evidence=(
            f"{row['starts']} of {row['steps']} steps waited {seconds(row['waited'] / row['starts'])} each;"
            " persistent_workers is off",
        ),
        advice=(
            "keep the workers: persistent_workers=True",
            "make epochs longer: a sampler that goes through the data several times",
        ),
        try_first="DataLoader(..., persistent_workers=True)",
    )


RULE = Rule(
    "workers-restart",
    "speed",
    "Does the data loader start its workers anew in every epoch?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.10, "share of the time spent waiting for new workers"),
        Threshold("starts", 3, "starts needed to judge"),
    ),
    explains=("data-bound", "pauses", "slower-than-best", "loader-workers-busy"),
    is_live=True,
)
