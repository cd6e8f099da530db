"""Copies of trained models: targets, averages, and the engines that generate.

How often their parameters were changed is read from the versions that torch counts. What is written by way of `.data`
is not counted, so before a copy is said to stay as it is, its values are looked at twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping

from probe_cli.cluster.nan.tensors import Reading, read_tensors

from .finding import NoEvidence
from .job import Job
from .rule import Row

__all__ = ["SQL", "as_large", "copies", "updates_without_change", "values_of"]

#: A row for each model, with how often its parameters were changed: the one of the least (`versions`), and of the most.
SQL = """
SELECT module, any_value(class) AS class, any_value(modules.parameters) AS parameters, any_value(place) AS place,
    any_value(modules.dtype) AS dtype, min(versions) AS versions, max(versions) AS most,
    any_value(optimizer) AS optimizer, bool_or(module IN
        (SELECT module FROM python.torch_trace WHERE phase = 'generate' AND stage = 'forward')) AS generates
FROM (SELECT module, class, parameters, place, dtype FROM torch.modules WHERE depth = 0) AS modules
JOIN (SELECT split_part(module, '.', 1) AS module, versions, optimizer FROM torch.parameters WHERE module IS NOT NULL)
    USING (module)
GROUP BY module ORDER BY module
"""
#: How long a step may be held up to read values, how long the reading may take, and how long values are watched.
BUDGET_MS, READ_S, WATCH_S, PAUSE_S = 5.0, 5.0, 6.0, 1.0


def copies(rows: Iterable[Row]) -> Iterator[tuple[Row, Row]]:
    """Yield each model that no optimizer holds, with the trained one that it is like."""
    for copy, trained in as_large(rows):
        if copy["class"] == trained["class"]:
            yield copy, trained


def as_large(rows: Iterable[Row]) -> Iterator[tuple[Row, Row]]:
    """Yield each model that no optimizer holds, with a trained one that has as many parameters."""
    known = list(rows)
    for copy in known:
        for trained in known:
            is_like = copy["parameters"] == trained["parameters"]
            if is_like and copy["optimizer"] is None and trained["optimizer"] is not None:
                yield copy, trained


async def updates_without_change(job: Job, rank: int, copy: str, trained: str, enough: float) -> int:
    """Watch the values of a copy until the trained model was updated `enough` times; return how often it was, 0 where
    the copy changed. Raises NoEvidence where that was not seen within some seconds."""
    first_values = await values_of(job, rank, copy)
    first = await _versions(job, rank, trained)
    ends = time.monotonic() + WATCH_S
    updates = 0
    while first_values and updates < enough and time.monotonic() < ends:
        await asyncio.sleep(PAUSE_S)
        updates = await _versions(job, rank, trained) - first
        values = await values_of(job, rank, copy)
        if any(values[name] != told for name, told in first_values.items() if name in values):
            return 0
    if updates < enough:
        raise NoEvidence(f"{copy} did not change in the {updates} updates of {trained} that could be watched")
    return updates


async def values_of(job: Job, rank: int, module: str) -> Mapping[tuple[object, object], tuple[object, object]]:
    """Return the norm and the largest value of each parameter of a model, or of a module of one."""

    async def told() -> list[Reading]:
        question = read_tensors("parameters", BUDGET_MS, READ_S)
        return list((await job.ask(question, job.endpoints_of([rank])[:1], timeout_s=2 * READ_S)).values())

    rows = [row for reading in await told() for row in reading.rows()]
    return {
        (row["module"], row["tensor"]): (row["norm"], row["biggest"])
        for row in rows
        if f"{row['module']}.".startswith(f"{module}.")
    }


async def _versions(job: Job, rank: int, model: str) -> int:
    return next((int(row["versions"]) for row in await job.rows(SQL, rank) if row["module"] == model), 0)
