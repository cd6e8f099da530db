"""`python.worker_stacks`: where the loader workers of each target are."""

from __future__ import annotations

from collections.abc import Sequence

from probe_agent.errors import NoAnswer
from probe_agent.recorder.ring.table import Column
from probe_agent.sql.tables.live_table import LiveTable
from probe_agent.sql.tables.stack_rows import FRAME_COLUMNS, frame_rows
from probe_agent.targets import Target, take_worker_stacks, workers_of

__all__ = ["WorkerStacks"]


class WorkerStacks(LiveTable):
    name = "python.worker_stacks"
    doc = "Frames of every thread of the DataLoader workers, read from outside by py-spy when the query runs."
    columns = (Column("worker_pid", "int", "", "process id of the worker, as the host sees it"), *FRAME_COLUMNS)

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[tuple[object, ...]], Sequence[str]]:
        rows: list[tuple[object, ...]] = []
        notes: list[str] = []
        for worker in workers_of(target):
            try:
                threads = take_worker_stacks(worker)
            except NoAnswer as error:
                notes.append(error.message)
                continue
            rows += [(worker.process.pid, *row) for row in frame_rows(target, threads)]
        return rows, notes or ([] if rows else [f"{target} has no loader workers now"])
