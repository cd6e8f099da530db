"""The data loader's workers compute all the time, and the step still waits.

Each worker's CPU time since it was started, with the time for which it waited for a CPU, is divided by its age: near 1,
the transforms are too slow for so few workers. Near 0, workers wait for storage or for each other, and more of them
help little. Where one computes all the time and the others hardly, its share of the data is the slow one: batches are
given out in order, so all wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.cluster.folded import job_frame
from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.diagnose.worker_stacks import worker_stacks
from probe_cli.text import percent, seconds

__all__ = ["RULE"]

SQL = """
SELECT workers.*, recent.*
FROM (
    SELECT count(*) AS workers, avg(busy) AS busy, max(busy) AS busiest, arg_max(worker_pid, busy) AS pid,
        median(busy) FILTER (worker_pid <> busiest_pid) AS others
    FROM (SELECT *, arg_max(worker_pid, busy) OVER () AS busiest_pid FROM (
        SELECT worker_pid, (cpu_user + cpu_system + coalesce(run_delay, 0)) / age AS busy
        FROM python.workers WHERE age > 2))
) AS workers, (
    SELECT count(*) AS steps, sum(data_wait) AS waited, sum(duration) AS lasted
    FROM (FROM python.steps WHERE data_wait IS NOT NULL ORDER BY step DESC LIMIT 200)
) AS recent
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["workers"]:
        raise NotApplicable("the data loader has no worker processes, or they have just started")
    if not row["steps"] or row["waited"] / row["lasted"] < limits["share"] or row["busiest"] < limits["busy"]:
        return
    share, cost = row["waited"] / row["lasted"], row["waited"] / row["steps"]
    if row["others"] is not None and row["others"] < limits["others"] * row["busiest"]:
        yield Finding(
            f"one of the data loader's {row['workers']} workers computes {percent(row['busiest'])} of the time, the"
            f" others {percent(row['others'])}, and the step waits {percent(share)} of its own for it",
            Certainty.LIKELY,
            cost_s=cost,
            share=share,
            evidence=(
                f"worker {row['pid']} computes, or waits for a CPU to, {percent(row['busiest'])} of its age",
                f"data_wait {seconds(cost)} a step over {row['steps']} steps",
            ),
            advice=(
                "spread the slow samples over all workers: shards of equal work, or a map-style dataset",
                "make what this worker does cheaper: parse once, and store what comes out",
            ),
            try_first='probe PID query "FROM python.worker_stacks"',
        )
        return
    if row["busy"] < limits["busy"]:
        return
    who = "one worker computes" if row["workers"] == 1 else f"{row['workers']} workers compute"
    yield Finding(
        f"the data loader's {who} {percent(row['busy'])} of the time, and the step waits for data"
        f" {percent(share)} of its own",
        Certainty.LIKELY,
        cost_s=cost,
        share=share,
        evidence=(
            f"CPU time of the workers and their waits for a CPU: {percent(row['busy'])} of their age",
            f"data_wait {seconds(cost)} a step over {row['steps']} steps",
        ),
        advice=(
            "more workers, as long as cores are free",
            'make the transforms cheaper: `probe PID query "SELECT func, file, lineno, count(*) FROM'
            ' python.worker_stacks WHERE depth = 0 GROUP BY ALL ORDER BY 4 DESC"` shows their lines',
        ),
        try_first="DataLoader(..., num_workers=2 * num_workers)",
    )


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    """The same with the lines that the workers of the first rank are in."""
    stacks = await worker_stacks(job, found[0].ranks[0])
    seen = Counter(place for frames in stacks if (place := job_frame(frames)) is not None)
    places = [place for place, _ in seen.most_common(3)]
    named = (f"lines that the workers were in: {', '.join(places)}",) if places else ()
    return [replace(one, evidence=(*one.evidence, *named)) for one in found]


RULE = Rule(
    "loader-workers-busy",
    "speed",
    "Are the data loader's workers too few for their transforms?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.10, "share of the step's time spent waiting for data"),
        Threshold("busy", 0.70, "CPU time of the workers, and waits for a CPU, as a share of their age"),
        Threshold("others", 0.40, "CPU time of the other workers, as a part of the busiest one's, that is uneven"),
    ),
    explains=("data-bound",),
    is_live=True,
    look=look,
    on_host=True,
)
