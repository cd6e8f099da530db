"""A queue grows: more is put into it than is taken out.

Requests, rollouts or batches then wait longer and longer, and memory fills. Judged are the queues of `queue`, asyncio
and multiprocessing (its sending end) that the job's frames and globals lead to. One is looked at twice, some seconds
apart, and named if it has become longer in between, and longer while it was looked at. A queue that fills up to a bound
is none: it stops growing there.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT place, items, added, period FROM python.containers WHERE "class" = 'deque' ORDER BY items DESC
"""
#: What queue.Queue, asyncio.Queue and the sending end of multiprocessing.Queue keep their items in.
IN_QUEUE = re.compile(r"^attribute `(queue|_queue|_buffer)` of (.*)$")
PAUSE_S = 3.0


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    queues = _queues(rows)
    if not queues:
        raise NotApplicable("no queue with 16 items or more was found")
    for place, row in queues.items():
        if row["items"] >= limits["items"] and row["added"] > 0:
            yield Finding(
                f"a queue grows: {row['items']:,} items wait in it",
                Certainty.SUSPECTED,
                share=0.7,
                where=place,
                evidence=(f"{row['items']:,} items",),
                advice=(
                    "take more out at once: answer several items with one batch of the model",
                    "let more workers take from it, as long as cores or GPUs are free; see that all of them live",
                    "bound it: queue.Queue(maxsize=N), so that who puts into it waits, or is refused",
                ),
                try_first="probe PID profile --cpu 5s",
            )
            return


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    """See that each is longer some seconds later. Raises NoEvidence where that cannot be seen."""
    before = [_queues(await job.rows(SQL, one.ranks[0])).get(one.where) for one in found]
    await asyncio.sleep(PAUSE_S)
    told: list[Finding] = []
    for one, earlier in zip(found, before, strict=True):
        row = _queues(await job.rows(SQL, one.ranks[0])).get(one.where)
        if earlier is None or row is None:
            raise NoEvidence("the queue was not found a second time: ask again")
        if row["added"] <= 0 or row["items"] <= earlier["items"] * (1 + limits["growth"]):
            continue
        told.append(
            replace(
                one,
                sentence=f"a queue grows, by {row['added'] / row['period']:,.0f} items a second:"
                f" {row['items']:,} items wait in it",
                certainty=Certainty.LIKELY,
                evidence=(f"{earlier['items']:,} items at first, {row['items']:,} some seconds later: {one.where}",),
            )
        )
    return told


def _queues(rows: Iterable[Row]) -> Mapping[str, Row]:
    """Return the rows of queues by what holds them."""
    named = ((IN_QUEUE.match(row["place"]), row) for row in rows)
    return {match[2]: row for match, row in named if match}


RULE = Rule(
    "queue-grows",
    "generation",
    "Is more put into a queue than is taken out?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("items", 100, "items from which a queue is looked at"),
        Threshold("growth", 0.005, "growth between the two looks"),
    ),
    explains=("container-grows", "memory-grows", "memory-limit-near", "requests-slow"),
    is_live=True,
    look=look,
)
