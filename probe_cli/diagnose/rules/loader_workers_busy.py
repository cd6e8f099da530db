"""The data loader's workers compute all the time, and the step still waits.

Each worker's CPU time since it was started is divided by its age: near 1, the transforms are too slow for so few
workers. Near 0, workers wait for storage or for each other, and more of them help little.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent, seconds

__all__ = ["RULE"]

SQL = """
SELECT workers.*, recent.*
FROM (
    SELECT count(*) AS workers, avg((cpu_user + cpu_system) / age) AS busy, sum(major_faults) AS faults,
        count(*) FILTER (state = 'waiting for a disk') AS on_disk
    FROM python.workers WHERE age > 2
) AS workers, (
    SELECT count(*) AS steps, sum(data_wait) AS waited, sum(duration) AS lasted
    FROM (FROM python.steps WHERE data_wait IS NOT NULL ORDER BY step DESC LIMIT 200)
) AS recent
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["workers"]:
        raise NotApplicable("the data loader has no worker processes, or they have just started")
    if not row["steps"] or row["waited"] / row["lasted"] < limits["share"] or row["busy"] < limits["busy"]:
        return
    share, cost = row["waited"] / row["lasted"], row["waited"] / row["steps"]
    yield Finding(
        f"the data loader's {row['workers']} workers compute {percent(row['busy'])} of the time, and the step waits"
        f" for them {percent(share)} of its own",
        Certainty.LIKELY,
        cost_s=cost,
        share=share,
        evidence=(
            f"CPU time of the workers: {percent(row['busy'])} of their age",
            f"data_wait {seconds(cost)} a step over {row['steps']} steps",
        ),
        advice=(
            "more workers, as long as cores are free",
            'make the transforms cheaper: `probe PID query "SELECT func, file, lineno, count(*) FROM'
            ' python.worker_stacks WHERE depth = 0 GROUP BY ALL ORDER BY 4 DESC"` shows their lines',
        ),
        try_first="DataLoader(..., num_workers=2 * num_workers)",
    )


RULE = Rule(
    "loader-workers-busy",
    "speed",
    "Are the data loader's workers too few for their transforms?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.10, "share of the step's time spent waiting for data"),
        Threshold("busy", 0.70, "CPU time of the workers as a share of their age"),
    ),
    explains=("data-bound",),
    is_live=True,
)
