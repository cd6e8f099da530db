"""Stacks of a data loader's workers, read from outside a few times for all rules that ask."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial

from probe_agent.wire import Frame

from .job import Job

__all__ = ["worker_stacks"]

#: The frames of those that fetch samples, and not of those that wait to be told which.
SQL = """
SELECT worker_pid, func, file, lineno FROM python.worker_stacks
WHERE worker_pid IN (SELECT worker_pid FROM python.worker_stacks WHERE file LIKE '%/utils/data/_utils/fetch.py')
ORDER BY worker_pid, depth
"""
#: At random moments: batches of the same length would keep pace.
LOOKS, PAUSE_S = 8, 0.1


async def worker_stacks(job: Job, rank: int) -> Sequence[Sequence[Frame]]:
    """Return the stacks of workers of this rank that fetched samples, innermost frame first."""
    return await job.once(f"worker stacks of {rank}", partial(_read, job, rank))


async def _read(job: Job, rank: int) -> list[list[Frame]]:
    stacks: list[list[Frame]] = []
    for _ in range(LOOKS):
        by_worker: dict[object, list[Frame]] = {}
        for row in await job.rows(SQL, rank):
            frame = Frame(str(row["func"]), str(row["file"]), int(row["lineno"]), 0, "python", None)
            by_worker.setdefault(row["worker_pid"], []).append(frame)
        stacks += by_worker.values()
        await asyncio.sleep(PAUSE_S * random.random())
    return stacks
