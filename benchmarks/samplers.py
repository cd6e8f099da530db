"""Cost of our thread each time it samples or takes an inventory: `python -m benchmarks.samplers`.

Runs alone, in a process that has torch loaded, OpenMP threads running and descriptors open. Times are wall-clock
times of our thread; the system calls in them run without the GIL.
"""

from __future__ import annotations

import argparse
import gc
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter_ns, thread_time_ns

import torch
import torch.distributed

from probe_agent.recorder.config import Settings
from probe_agent.recorder.operations import flight_recorder, kept_weights, modules, optimizers, process_groups, stacks
from probe_agent.recorder.ring.folder import STALL
from probe_agent.recorder.samplers import process, start
from probe_agent.recorder.samplers import stalls as stall_watch
from probe_agent.recorder.source import Recorder
from probe_agent.recorder.steps.attentions import Attentions
from probe_agent.recorder.steps.loss_graph import LossGraph
from probe_agent.recorder.steps.queue import StepQueue
from probe_agent.recorder.steps.running_sums import SumReader

from .machine import provenance
from .spread import table

__all__ = ["main"]


def costs(num_calls: int, num_threads: int, num_files: int) -> list[object]:
    """Return one row: the microseconds that a sample of process.samples takes with that many threads and files."""
    going = threading.Event()
    threads = [threading.Thread(target=going.wait, daemon=True) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(num_files)]
    source = process.Source(Recorder(Settings(), lambda name, error: False))
    source.start()
    source._pss_due = float("inf")
    walls: list[float] = []
    cpus: list[float] = []
    for _ in range(num_calls):
        source._last = 0.0
        wall, cpu = perf_counter_ns(), thread_time_ns()
        source.tick()
        walls.append((perf_counter_ns() - wall) / 1e3)
        cpus.append((thread_time_ns() - cpu) / 1e3)
    going.set()
    for thread in threads:
        thread.join()
    for file in files:
        os.close(file)
    spread = f"{median(walls):.0f} ({min(walls):.0f} to {sorted(walls)[len(walls) * 95 // 100]:.0f})"
    return [len(os.listdir("/proc/self/task")) + num_threads, num_files, spread, f"{median(cpus):.0f}"]


def pss_ms(num_mib: int) -> float:
    """Return the milliseconds that the kernel takes to add up the shares of all pages, with that much memory in use."""
    held = bytearray(num_mib << 20)
    held[::4096] = b"x" * len(held[::4096])
    began = perf_counter_ns()
    Path("/proc/self/smaps_rollup").read_text()
    return (perf_counter_ns() - began) / 1e6


def inventory(num_layers: int) -> list[object]:
    """Return the milliseconds of `torch.modules`, `torch.optimizers` and, with a state_dict kept, `torch.kept_weights`,
    those of asking Python's collector, and the microseconds for which the training thread notes the operations and the
    attentions in the graph of a loss."""
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(num_layers)])
    optimizer = torch.optim.Adam(model.parameters())
    loss = model(torch.ones(1, 4)).sum()
    loss.backward()
    optimizer.step()
    recorder = Recorder(Settings(), lambda name, error: False)
    best = model.state_dict()
    assert len(best) == 2 * num_layers
    tables = (modules, optimizers, kept_weights)
    questions = (*(partial(table.answer, recorder, {}) for table in tables), gc.get_objects)
    graph = median(_ms(lambda: LossGraph().note(loss)) * 1e3 for _ in range(50))
    attentions = median(_ms(lambda: Attentions(recorder.device.is_plain).note(loss)) * 1e3 for _ in range(50))
    return [
        num_layers + 1,
        *(f"{median(_ms(question) for _ in range(5)):.1f}" for question in questions),
        f"{graph:.0f}",
        f"{attentions:.0f}",
    ]


def sums(num_losses: int) -> list[object]:
    """Return one row: the µs of the training thread for which the graph of a sum of that many losses is read."""
    weight = torch.ones(4, requires_grad=True)
    total = torch.zeros(())
    for _ in range(num_losses):
        total = total + weight.sum()
    queue = StepQueue()

    def read() -> None:
        SumReader(queue, [(lambda: total, "total")], lambda: 0, lambda: False, lambda name, error: False)
        queue.run_pending()

    return [num_losses, f"{median(_ms(read) * 1e3 for _ in range(50)):.0f}"]


def stalls(num_threads: int, num_calls: int) -> list[object]:
    """Return one row: a tick of the stall watch and of the start, in µs, and a snapshot with that many threads and that
    many entries of Flight Recorder, in ms of our thread's CPU time."""
    going = threading.Event()
    threads = [threading.Thread(target=going.wait, daemon=True) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for _ in range(num_calls):
        torch.distributed.all_reduce(torch.ones(1))
    with TemporaryDirectory() as folder:
        recorder = Recorder(Settings(), lambda name, error: False)
        recorder.folder = folder
        answers = {"stacks": stacks, "flight_recorder": flight_recorder, "process_groups": process_groups}
        recorder.ask = lambda name, request: answers[name].answer(recorder, request)
        watch, beginning = stall_watch.Source(recorder), start.Source(recorder)
        ticks = [median(_ms(source.tick) * 1e3 for _ in range(1_000)) for source in (watch, beginning)]
        snapshot = median(_ms(lambda: watch._notice(moved=False)) for _ in range(5))
        size_kib = (Path(folder) / STALL).stat().st_size / 1024
    going.set()
    for thread in threads:
        thread.join()
    return [num_threads, num_calls, *(f"{us:.1f}" for us in ticks), f"{snapshot:.0f}", f"{size_kib:.0f}"]


def _ms(question: Callable[[], object]) -> float:
    began = thread_time_ns()
    question()
    return (thread_time_ns() - began) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2_000, help="samples of each kind")
    args = parser.parse_args()
    torch.ones(1000, 1000) @ torch.ones(1000, 1000)
    rows = [costs(args.calls, *sizes) for sizes in ((0, 0), (16, 100), (200, 2_000))]
    print("One sample of process.samples, without PSS.\n")
    print(table(["threads", "files open", "µs, median (least to 95 %)", "of it CPU time, µs"], rows))
    print("\nAn inventory, CPU time of our thread in ms; gc.get_objects() beside it holds the GIL in one piece.\n")
    inventories = ("torch.modules", "torch.optimizers", "torch.kept_weights")
    headings = ["modules", *inventories, "gc.get_objects()", "torch.autograd_graph, µs", "torch.attentions, µs"]
    print(table(headings, [inventory(size) for size in (10, 100, 1_000, 10_000)]))
    print("\nReading the graph of a sum for python.containers, CPU time of the training thread.\n")
    print(table(["losses", "µs"], [sums(size) for size in (1, 100, 1_000, 10_000)]))
    print("\nReading PSS, by memory in use.\n")
    print(table(["MiB", "ms"], [[size, f"{pss_ms(size):.1f}"] for size in (0, 256, 1024, 4096)]))
    with TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
        rows = [stalls(*sizes) for sizes in ((0, 0), (16, 200), (50, 2_000))]
        torch.distributed.destroy_process_group()
    print("\nA stall: ticks of our thread in µs, one snapshot in ms, CPU time.\n")
    print(table(["threads", "collectives", "watch, µs", "before the first step, µs", "snapshot, ms", "KiB"], rows))
    print()
    print(provenance())


if __name__ == "__main__":
    main()
