"""Batches are made on the training thread.

With `num_workers=0` the data loader runs the data set and the transforms between two steps, while the model waits. It
is the default of `DataLoader`, and the most frequent cause of a step that waits for data. A data set in memory, whose
batches take less than a worker needs to hand one over, is served best so. Of the share, the time for which the thread
waits for a core is taken off before it is judged, but no more than a fifth of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.diagnose.sampling import Stack, lines_of, stacks_of
from probe_cli.text import percent, seconds

__all__ = ["RULE"]

SQL = """
SELECT loader, place, num_workers, dataset, batch_size, recent.*, host.*
FROM torch.dataloaders, (
    SELECT count(*) AS steps, sum(data_wait) AS waited, sum(duration) AS lasted
    FROM (FROM python.steps WHERE data_wait IS NOT NULL ORDER BY step DESC LIMIT 200)
) AS recent, (
    SELECT sum(run_delay) / sum(period) AS delay FROM (FROM process.samples ORDER BY ts DESC LIMIT 30)
) AS host
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no torch DataLoader was found")
    (first, *_) = rows
    if any(row["num_workers"] for row in rows):
        return
    if first["steps"] < limits["steps"]:
        raise NoEvidence(f"{first['steps']} steps recorded, {limits['steps']:.0f} needed: ask again later")
    share = first["waited"] / first["lasted"]
    cost = first["waited"] / first["steps"]
    delay = first["delay"] or 0.0
    on_a_free_core = cost * (1 - delay)
    if share - delay < limits["share"] or on_a_free_core < limits["seconds"]:
        return
    yield Finding(
        f"the data loader has no worker processes: batches are made on the training thread, {percent(share)} of the"
        " time",
        Certainty.CERTAIN,
        cost_s=cost,
        share=share,
        where=str(first["place"] or first["loader"]),
        evidence=(
            f"num_workers=0 in {first['loader']} over {first['dataset']}",
            f"data_wait {seconds(cost)} a step over {first['steps']} steps",
        ),
        advice=(
            "give it workers: num_workers=4 or more, persistent_workers=True, and pin_memory=True on a GPU",
            "look at the hottest lines of the data set: `probe PID profile --cpu 5s`",
        ),
        try_first="DataLoader(..., num_workers=4, persistent_workers=True)",
    )


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    """The same with the lines of the data set that take the time."""
    told = list(found)
    for at, one in enumerate(told[:1]):
        lines = lines_of(await stacks_of(job, one, _fetches), _fetches)
        seen = tuple(f"{percent(part)} of the stacks: {line}" for line, part in lines[:3])
        told[at] = replace(one, evidence=(*one.evidence, *seen))
    return told


def _fetches(stack: Stack) -> bool:
    return any(frame.file.endswith("/utils/data/_utils/fetch.py") for frame in stack.frames)


RULE = Rule(
    "loader-without-workers",
    "speed",
    "Are batches made on the training thread?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("steps", 20, "steps needed to judge"),
        Threshold("share", 0.10, "share of the step's time spent making batches"),
        Threshold("seconds", 0.002, "seconds to make a batch on a free core: what a worker takes to hand one over"),
    ),
    explains=("data-bound",),
    is_live=True,
    look=look,
    on_host=True,
)
