"""The data loader starts its workers anew in every epoch, or in every step.

Without `persistent_workers=True` all worker processes end with an epoch, and the next one waits until new ones have
started, imported and filled their queues. With short epochs that is much of the time. A loader that is made in each
step, for one batch, does nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent, seconds

__all__ = ["RULE"]

SQL = """
SELECT count(*) AS steps, sum(duration) AS lasted, sum(data_wait) AS all_waits,
    count(*) FILTER (workers_started > 0) AS starts, sum(data_wait) FILTER (workers_started > 0) AS waited,
    max(workers_started) AS num_workers,
    (SELECT any_value(place) FROM torch.dataloaders WHERE num_workers > 0 AND NOT persistent_workers) AS place
FROM (FROM python.steps WHERE data_wait IS NOT NULL ORDER BY step DESC LIMIT 500)
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["starts"]:
        raise NotApplicable("no data loader has started workers in the steps that are recorded")
    share = row["waited"] / row["lasted"] if row["lasted"] else 0.0
    if row["starts"] < limits["starts"] or share < limits["share"] or row["waited"] < 0.6 * row["all_waits"]:
        return
    every = round(row["steps"] / row["starts"])
    often = "in each step" if every == 1 else f"every {every} steps"
    made_once = "make the loader, and its iterator, once, before the loop: for batch in loader"
    yield Finding(
        f"the data loader starts its {row['num_workers']} workers anew {often}, and the step waits for them:"
        f" {percent(share)} of the time",
        Certainty.CERTAIN,
        cost_s=row["waited"] / row["steps"],
        share=share,
        where=str(row["place"] or ""),
        evidence=(
            f"{row['starts']} of {row['steps']} steps started workers, and waited"
            f" {seconds(row['waited'] / row['starts'])} each for their first batch",
        ),
        advice=(
            *((made_once,) if every == 1 else ()),
            "keep the workers: persistent_workers=True",
            "make epochs longer: a sampler that goes through the data several times",
        ),
        try_first="for batch in DataLoader(...): ..." if every == 1 else "DataLoader(..., persistent_workers=True)",
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
