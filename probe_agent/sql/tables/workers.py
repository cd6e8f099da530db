"""`python.workers`: the loader workers of each target."""

from __future__ import annotations

from collections.abc import Sequence

from probe_agent.recorder.ring.table import Column
from probe_agent.sql.tables.last_step import newest_step
from probe_agent.sql.tables.live_table import LiveTable
from probe_agent.sql.tables.recorder_table import STEP
from probe_agent.targets import Target, workers_of

__all__ = ["Workers"]


class Workers(LiveTable):
    name = "python.workers"
    doc = "DataLoader worker processes, out of /proc when the query runs; their stacks are in python.worker_stacks."
    columns = (
        STEP,
        Column("worker_pid", "int", "", "process id of the worker, as the host sees it"),
        Column("kind", "text", "", "loader: torch says so; fork: a copy of the target (torch before 2.6)"),
        Column("state", "text", "", "running, sleeping, waiting for a disk, stopped"),
        Column("waits_in", "text", "", "the kernel function it sleeps in; NULL where the kernel does not tell"),
        Column("age", "float", "s", "time since it was started"),
        Column("cpu_user", "float", "s", "CPU time in its own code since then"),
        Column("cpu_system", "float", "s", "CPU time in the kernel since then"),
        Column("major_faults", "int", "", "pages that had to be read from a disk"),
        Column("num_threads", "int", "", "its threads"),
        Column("rss", "float", "MiB", "resident memory"),
        Column("rss_shared", "float", "MiB", "of it files and shared memory, batches on their way among them"),
    )  # fmt: skip

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[tuple[object, ...]], Sequence[str]]:
        newest = newest_step(target)
        rows = [
            (
                newest[0] if newest else None,
                worker.process.pid,
                worker.kind,
                worker.process.state,
                worker.waits_in,
                worker.process.age_s,
                worker.cpu_user,
                worker.cpu_system,
                worker.major_faults,
                worker.num_threads,
                worker.rss,
                worker.rss_shared,
            )
            for worker in workers_of(target)
        ]
        return rows, [] if rows else [f"{target} has no loader workers now"]
