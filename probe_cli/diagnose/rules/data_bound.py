"""The step waits for data.

`data_wait` is the time the training thread spends in `next()` of the data loader. More than a tenth of the step is
worth a look, a fifth and more costs real money. Two milliseconds are what it takes to hand a batch over. On a busy host
the batch is there, and the thread that it wakes waits for a core; or it is late since a worker waits for one. These are
taken off before the share is judged. The longest wait is left out: it may be the start of the workers. The cause is
another rule's finding where it can be seen: no worker processes, or workers that are busy all the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent, seconds

__all__ = ["RULE"]

SQL = """
SELECT count(*) AS steps, sum(data_wait) AS waited, sum(duration) AS lasted, median(data_wait) AS usual,
    (SELECT sum(run_delay) / sum(period) FROM (
        FROM process.samples WHERE run_delay IS NOT NULL ORDER BY ts DESC LIMIT 30)) AS delay,
    (SELECT avg(run_delay / age) FROM python.workers WHERE age > 2) AS delay_of_workers,
    (SELECT max(num_children) FROM (FROM process.samples ORDER BY ts DESC LIMIT 30)) AS children,
    (SELECT avg(cpu_some) FROM host.pressure
        WHERE scope = 'host' AND ts > (SELECT max(ts) - INTERVAL 1 MINUTE FROM python.steps)) AS pressure
FROM (
    FROM (FROM python.steps WHERE data_wait IS NOT NULL ORDER BY step DESC LIMIT 200)
    QUALIFY row_number() OVER (ORDER BY data_wait DESC) > 1)
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if row["steps"] < limits["steps"]:
        raise NoEvidence(f"{row['steps']} steps recorded, {limits['steps']:.0f} needed: ask again later")
    share = row["waited"] / row["lasted"]
    cost = row["waited"] / row["steps"]
    handing_over = limits["seconds"] * row["steps"] / row["lasted"]
    for_a_core = (row["delay"] or 0.0) + (row["delay_of_workers"] or 0.0)
    if share - handing_over - for_a_core < limits["share"]:
        return
    if row["children"] and (row["pressure"] or 0.0) >= limits["pressure"]:
        raise NoEvidence("tasks of this host wait for a core all the time, those that make the batches as well")
    yield Finding(
        f"the step waits for data {percent(share)} of the time",
        Certainty.CERTAIN,
        cost_s=cost,
        share=share,
        evidence=(
            f"data_wait {seconds(cost)} of {seconds(row['lasted'] / row['steps'])} a step"
            f" (median {seconds(row['usual'])}), {row['steps']} steps",
        ),
        advice=(
            'see what the workers do: `probe PID query "SELECT * FROM python.worker_stacks"`',
            "move transforms off the critical path: more workers, cheaper or precomputed transforms, larger reads",
            "keep the data on a local disk, or in memory if it fits",
        ),
        try_first='probe PID query "FROM torch.dataloaders"',
    )


RULE = Rule(
    "data-bound",
    "speed",
    "Does the step wait for data?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.10, "share of the step's time spent waiting for data"),
        Threshold("seconds", 0.002, "seconds a step that it takes to hand a batch over"),
        Threshold(
            "pressure", 0.9, "share of the time in which tasks wait for a core, from which workers are not judged"
        ),
        Threshold("steps", 20, "steps needed to judge"),
    ),
    on_host=True,
)
