"""Loader workers of a target: its child processes that make batches.

Runs beside the target, out of /proc: 2 ms for 100 processes on the host, and 0.1 ms a worker. Neither the target nor
its workers are asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from probe_agent import inject
from probe_agent.errors import NoAnswer
from probe_agent.procfs import ENDED, Process, all_processes
from probe_agent.thread_state import read_thread_state
from probe_agent.units import mib
from probe_agent.wire import ThreadStack, WorkerStack

from .stacks import with_state
from .target import Target

__all__ = ["LOADER_NAME", "Worker", "stacks_of_workers", "take_worker_stacks", "workers_of"]

#: The name that torch gives the main thread of a loader worker, since torch 2.6.
LOADER_NAME = "pt_data_worker"
#: Readers of stacks at once; each takes a processor.
_SIDE_BY_SIDE = 4
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Worker:
    """One worker; times in seconds, memory in MiB."""

    process: Process
    kind: str  # "loader" if torch has named it so, "fork" if it is an unnamed copy of the target
    cpu_user: float
    cpu_system: float
    run_delay: float | None
    major_faults: int
    num_threads: int
    rss: float
    rss_shared: float
    waits_in: str | None


def workers_of(target: Target) -> Iterator[Worker]:
    """The workers that run now, oldest first. Of a target in another PID namespace, those that we can see."""
    if target.process is None:
        return
    family = {target.process.pid}
    command = target.process.command
    # A worker may be a grandchild, if the fork server of multiprocessing has started it.
    for process in sorted(all_processes(), key=lambda process: process.start_ticks):
        if process.parent_pid in family and process.pid != target.process.pid:
            family.add(process.pid)
            worker = _worker(process, command)
            if worker is not None:
                yield worker


def take_worker_stacks(worker: Worker) -> tuple[ThreadStack, ...]:
    """Return the stacks of its threads, the main thread first, read by py-spy in 30 to 130 ms. Raises NoAnswer."""
    threads = inject.read_stacks(worker.process.pid)
    return tuple(with_state(worker.process, thread) for thread in threads)


def stacks_of_workers(target: Target) -> tuple[tuple[WorkerStack, ...], tuple[str, ...]]:
    """Return the stacks of all loader workers of `target`, read side by side, and notes on those that could not be
    read."""
    workers = list(workers_of(target))
    if not workers:
        return (), (f"{target} has no loader workers now",)
    notes: list[str] = []

    def read(worker: Worker) -> WorkerStack:
        try:
            threads = take_worker_stacks(worker)
        except NoAnswer as unreadable:
            notes.append(unreadable.message)
            threads = ()
        return WorkerStack(worker.process.pid, worker.kind, threads)

    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        return tuple(pool.map(read, workers)), tuple(notes)


def _worker(process: Process, command: tuple[str, ...]) -> Worker | None:
    try:
        name = process.read("comm").strip()
        kind = "loader" if name == LOADER_NAME else "fork" if command and process.command == command else None
        if kind is None or not process.is_alive:
            return None
        stat = process.stat_now()
        _, resident, shared, *_ = process.read("statm").split()
        waits_in = read_thread_state(process, process.pid).waits_in
        run_delay = process.run_delay_s
    except (*ENDED, PermissionError):
        return None  # it has ended, or it is another user's
    return Worker(
        process,
        kind,
        stat.cpu_user_s,
        stat.cpu_system_s,
        run_delay,
        stat.major_faults,
        stat.num_threads,
        mib(int(resident) * _PAGE_BYTES),
        mib(int(shared) * _PAGE_BYTES),
        waits_in,
    )
