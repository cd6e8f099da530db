"""Live tables of what a target's threads and loader workers are doing: `python.backtrace`, `python.workers`, …"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probe_agent.errors import NoAnswer
from probe_agent.recorder.ring.table import Column
from probe_agent.targets import Target, newest_step, take_stacks, take_worker_stacks, workers_of
from probe_agent.wire import ThreadStack

from .live_table import STEP, LiveTable, RecorderTable, Row

__all__ = ["Backtrace", "Containers", "CurrentStep", "Stacks", "WorkerStacks", "Workers"]

_FRAME_COLUMNS: tuple[Column, ...] = (
    STEP,
    Column("depth", "int", "", "0 is the innermost call"),
    Column("func", "text", "", "name of the function"),
    Column("file", "text", "", "path of its source in the target"),
    Column("lineno", "int", "", "the line being executed, not that of the def"),
    Column("frame_type", "text", "", "python or native"),
    Column("thread", "text", "", "name of the thread"),
    Column("tid", "int", "", "the kernel's thread id; NULL if Python does not know it"),
)


class Backtrace(LiveTable):
    name = "python.backtrace"
    doc = "Frames of the main thread, read when the query runs."
    columns = _FRAME_COLUMNS

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[Row], Sequence[str]]:
        taken = take_stacks(target, all_threads=False)
        main = tuple(thread for thread in taken.threads if thread.is_main)
        return list(_frame_rows(target, main)), taken.notes


class Stacks(LiveTable):
    name = "python.stacks"
    doc = "Frames of every thread, read when the query runs."
    columns = _FRAME_COLUMNS

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[Row], Sequence[str]]:
        taken = take_stacks(target, all_threads=True)
        return list(_frame_rows(target, taken.threads)), taken.notes


class CurrentStep(RecorderTable):
    name = "python.current_step"
    doc = (
        "The step under way when the query runs: its age, and the parts of it that have ended; one row. Two queries"
        " tell a long step from one that stands still."
    )
    operation = "current_step"
    columns = (
        STEP,
        Column("number", "int", "", "number that its row in python.steps will have"),
        Column("age", "float", "s", "time since the last step ended, or since the recorder came"),
        Column("micro_batches", "int", "", "calls of backward so far"),
        Column("data_wait", "float", "s", "waiting for batches so far"),
        Column("modules", "float", "s", "inside the outermost modules so far; NULL if these are not seen"),
        Column("backward", "float", "s", "inside backward so far; NULL if it has not been called"),
        Column("optimizer", "float", "s", "inside optimizer.step so far"),
        Column("evaluation", "float", "s", "evaluating so far"),
        Column("generation", "float", "s", "generating so far"),
    )


class Containers(RecorderTable):
    name = "python.containers"
    doc = (
        "The lists, sets, deques and dicts with 16 items or more that the job's frames and globals lead to, at most 50,"
        " those first that keep autograd graphs or grow, when the query runs; it takes 0.4 s. An lru_cache"
        " is one without a bound; a Tensor is a sum that keeps the graphs of its summands over steps, of which at most"
        " 1,000 operations are looked at. Hooks are those of a module or of one of its parameters."
    )
    operation = "containers"
    columns = (
        STEP,
        Column("place", "text", "", "where it was found"),
        Column("class", "text", "", "its class, list of exceptions where it holds them; hooks, hooks of one function"),
        Column("items", "int", "", "its length; of a sum, its newest summands"),
        Column("added", "int", "", "growth of its length during the query; 0 if it got shorter in between"),
        Column("period", "float", "s", "time in which it grew so"),
        Column("tensors", "int", "", "items that are or hold tensors, judged by the newest 200"),
        Column("graphs", "int", "", "those whose tensors keep their autograd graph"),
        Column(
            "tensor_size", "float", "MiB", "size of their storages, which a view keeps as a whole, without the graphs"
        ),
        Column("size", "float", "MiB", "tensor_size, and that of the items that are numbers, text, bytes or arrays"),
        Column("steps", "int", "", "steps that ended meanwhile"),
    )


class Workers(LiveTable):
    name = "python.workers"
    doc = "DataLoader worker processes, read from /proc when the query runs; their stacks are in python.worker_stacks."
    columns = (
        STEP,
        Column("worker_pid", "int", "", "process id of the worker, as the host sees it"),
        Column("kind", "text", "", "loader: known from torch; fork: a copy of the target (torch before 2.6)"),
        Column("state", "text", "", "running, sleeping, waiting for a disk, stopped"),
        Column("waits_in", "text", "", "the kernel function it sleeps in; NULL if the kernel does not say"),
        Column("age", "float", "s", "time since it was started"),
        Column("cpu_user", "float", "s", "CPU time in its own code since then"),
        Column("cpu_system", "float", "s", "CPU time in the kernel since then"),
        Column("run_delay", "float", "s", "time its main thread was ready to run but waited for a CPU; NULL if the "
                                          "kernel does not count it"),
        Column("major_faults", "int", "", "pages read from a disk"),
        Column("num_threads", "int", "", "its threads"),
        Column("rss", "float", "MiB", "resident memory"),
        Column("rss_shared", "float", "MiB", "the part in files and shared memory, including batches in transit"),
    )  # fmt: skip

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[Row], Sequence[str]]:
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
                worker.run_delay,
                worker.major_faults,
                worker.num_threads,
                worker.rss,
                worker.rss_shared,
            )
            for worker in workers_of(target)
        ]
        return rows, [] if rows else [f"{target} has no loader workers now"]


class WorkerStacks(LiveTable):
    name = "python.worker_stacks"
    doc = "Frames of every thread of the DataLoader workers, read from outside by py-spy when the query runs."
    columns = (Column("worker_pid", "int", "", "process id of the worker, as the host sees it"), *_FRAME_COLUMNS)

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[Row], Sequence[str]]:
        rows: list[Row] = []
        notes: list[str] = []
        for worker in workers_of(target):
            try:
                threads = take_worker_stacks(worker)
            except NoAnswer as error:
                notes.append(error.message)
                continue
            rows += [(worker.process.pid, *row) for row in _frame_rows(target, threads)]
        return rows, notes or ([] if rows else [f"{target} has no loader workers now"])


def _frame_rows(target: Target, threads: tuple[ThreadStack, ...]) -> Iterator[Row]:
    """Rows of frames, the innermost first."""
    newest = newest_step(target)
    step = newest[0] if newest else None
    for thread in threads:
        for frame in thread.frames:
            yield step, frame.depth, frame.func, frame.file, frame.lineno, frame.frame_type, thread.thread, thread.tid
