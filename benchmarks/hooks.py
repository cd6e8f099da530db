"""Cost of each hook for the thread it runs on, and of a step by its number of modules: `python -m benchmarks.hooks`.

Runs in this process, without a server or thread of ours: blocks of calls with the recorder's hooks and without them, in
shuffled order, in CPU time of the thread. Rows are packed into rings, as in a job. The modules do nothing, so the
hooks dominate and find everything in the caches; among the operations of a real model a call costs more
(`benchmarks.overhead`).
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from statistics import quantiles
from time import perf_counter_ns, thread_time
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from probe_agent import span
from probe_agent.recorder.config import Settings
from probe_agent.recorder.hooks import (
    backward,
    checkpoints,
    clipping,
    data,
    inference,
    modules,
    optimizer,
    phases,
    replicas,
    spans,
    user_tables,
)
from probe_agent.recorder.ring.buffer import RowBuffer
from probe_agent.recorder.ring.table import Table
from probe_agent.recorder.ring.writer import RingWriter
from probe_agent.recorder.source import Recorder

from .machine import provenance
from .spread import table

__all__ = ["main"]

KINDS = tuple(
    kind.Source
    for kind in (
        optimizer, modules, backward, clipping, data, phases, inference, user_tables, spans, checkpoints, replicas,
    )
)  # fmt: skip
SIZES = (10, 100, 1_000, 10_000)
#: Module calls in a block of steps.
CALLS_A_BLOCK = 20_000
NONE, UNSAMPLED, SAMPLED, DEEP = "no recorder", "not sampled", "sampled", "sampled, with each backward"
SETTINGS = {UNSAMPLED: (0, 0), SAMPLED: (1, 0), DEEP: (1, 1)}


class Recording(Recorder):
    """A recorder whose tables have their rings in a folder, as in a job after its first rows."""

    def __init__(self, folder: str, every: int, deep_every: int) -> None:
        values = {"PROBE_TRACE_EVERY": str(every), "PROBE_TRACE_DEEP_EVERY": str(deep_every), "PROBE_TRACE_BUDGET": "0"}
        super().__init__(Settings(values), lambda source, error: True)  # raise: what fails would cost little
        self.folder = folder
        self.sources = {kind.name: kind(self) for kind in KINDS}

    def buffer(self, kind: type[Table]) -> RowBuffer:
        made = super().buffer(kind)
        if made.writer is None:
            of_target = {"host": "", "pid": os.getpid(), "rank": 0, "world_size": 1}
            made.writer = RingWriter(os.path.join(self.folder, kind.__name__), kind, of_target, capacity=65_536)
        return made

    def end_step(self) -> None:
        """Do what the optimizer's hook does."""
        self.ends.end_by_hand(perf_counter_ns())


@contextmanager
def recording(how: str) -> Iterator[Recording]:
    """Install the hooks."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        recorder = Recording(folder, *SETTINGS[how])
        for source in recorder.sources.values():
            source.start()
        try:
            yield recorder
        finally:
            for source in reversed(recorder.sources.values()):
                source.stop()
            recorder.close()


# What is called: a function that gets the recorder, or None, and gives what is timed.

Made = Callable[["Recording | None"], Callable[[], object]]


class Case(NamedTuple):
    """A call whose hooks are timed; one call runs the hooks `num` times."""

    name: str
    made: Made
    num: int = 1
    how: str = UNSAMPLED


class Chain(nn.Module):
    """A number of modules, one after another."""

    def __init__(self, links: list[nn.Module]) -> None:
        super().__init__()
        self.links = nn.ModuleList(links)
        self._called = links

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self._called:
            x = module(x)
        return x


class Link(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Scale(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0


class Endless(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        batch = torch.ones(1, 1)
        while True:
            yield batch


def steps_of(num_modules: int) -> Made:
    """Make a step that calls that many modules in one."""

    def made(recorder: Recording | None) -> Callable[[], object]:
        chain, x = Chain([nn.Identity() for _ in range(num_modules)]), torch.ones(1)
        if recorder is None:
            return lambda: chain(x)

        def step() -> None:
            chain(x)
            recorder.end_step()

        step()
        return step

    return made


def deep_step(recorder: Recording | None) -> Callable[[], object]:
    """Make a forward and backward of a hundred modules in one."""
    chain, x = Chain([Scale() for _ in range(100)]), torch.ones((), requires_grad=True)

    def step() -> None:
        chain(x).backward()
        if recorder is not None:
            recorder.end_step()

    step()
    return step


def end_of_a_step(recorder: Recording | None) -> Callable[[], object]:
    return (lambda: None) if recorder is None else recorder.end_step


def optimizer_step(recorder: Recording | None) -> Callable[[], object]:
    return torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1).step


def zero_grad(recorder: Recording | None) -> Callable[[], object]:
    return torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1).zero_grad


def a_backward(recorder: Recording | None) -> Callable[[], object]:
    weight = nn.Parameter(torch.ones(()))
    if recorder is not None:
        recorder.end_step()
    return lambda: torch.autograd.backward(weight * 1.0)


def clip_gradients(recorder: Recording | None) -> Callable[[], object]:
    """Clip after a backward whose loss is read, as at most every 2 ms."""
    weight = nn.Parameter(torch.ones(()))
    if recorder is not None:
        recorder.end_step()
    torch.autograd.backward(weight * 1.0)
    return lambda: nn.utils.clip_grad_norm_([weight], 1.0)


def a_batch(recorder: Recording | None) -> Callable[[], object]:
    batches = iter(DataLoader(Endless(), batch_size=None))
    if recorder is not None:
        recorder.end_step()
        recorder.step.is_training = True
    return lambda: next(batches)


def a_block(calls_module: bool) -> Made:
    """Time a block without gradients, with and without a module call in it."""

    def made(recorder: Recording | None) -> Callable[[], object]:
        link, x = Link(), torch.ones(1)
        if recorder is not None:
            recorder.end_step()
            recorder.step.is_training = True

        def block() -> None:
            with torch.no_grad():
                if calls_module:
                    link(x)

        return block

    return made


def called(which: int) -> Made:
    """Make a call of the module whose calls are steps, or of another one of its class."""

    def made(recorder: Recording | None) -> Callable[[], object]:
        links, x = [Link(), Link()], torch.ones(1)
        if recorder is not None:
            recorder.sources["inference"].follow(links[0])  # type: ignore[attr-defined]
        return lambda: links[0] and links[which](x)

    return made


def beside(recorder: Recording | None) -> Callable[[], object]:
    """Make a call that is a step, on a thread other than the one whose steps may be sampled."""
    call = called(0)(recorder)
    other = threading.Thread(target=call)
    other.start()
    other.join()
    return call


def by_hand(recorder: Recording | None) -> Callable[[], object]:
    """Time the search for an update after a backward, without the backward itself."""
    if recorder is None:
        return lambda: None
    chain, updates = nn.Sequential(*(nn.Linear(8, 8) for _ in range(8))), recorder.updates
    loss = chain(torch.ones(1, 8)).sum()

    def look() -> None:
        updates.before_backward(0, loss)
        updates.after_backward()
        updates.look(0)

    return look


def a_span(recorder: Recording | None) -> Callable[[], object]:
    def part() -> None:
        with span("part"):
            pass

    return part


def a_save(recorder: Recording | None) -> Callable[[], object]:
    state = {"model": nn.Linear(1, 1).state_dict(), "step": 1}
    return lambda: torch.save(state, os.devnull)


def a_checksum(recorder: Recording | None) -> Callable[[], object]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(64)) for _ in range(32)], 0.1)
    if recorder is None:
        return lambda: optimizer
    recorder.seen.optimizers.note(optimizer)
    note = recorder.sources["replicas"]._note  # type: ignore[attr-defined]
    return lambda: (note(), optimizer)


def a_row(num_columns: int) -> Made:
    values = {f"column_{number}": float(number) for number in range(num_columns)}

    def made(recorder: Recording | None) -> Callable[[], object]:
        if recorder is None:
            return lambda: dict(values)
        record = recorder.sources["user_tables"].record  # type: ignore[attr-defined]
        return lambda: record("episodes", dict(values))

    return made


CASES = (
    Case("end of a step, a row of python.steps", end_of_a_step),
    Case("optimizer.step, with that", optimizer_step),
    Case("optimizer.zero_grad", zero_grad),
    Case("backward", a_backward),
    Case("clip_grad_norm_, whose norm is read", clip_gradients),
    Case("a batch of a DataLoader", a_batch),
    Case("a block of no_grad that calls no module", a_block(False)),
    Case("a block of no_grad that calls one", a_block(True)),
    Case("a module of a sampled step, a row of python.torch_trace", steps_of(1_000), 1_001, SAMPLED),
    Case("forward and backward of one, two rows", deep_step, 101, DEEP),
    Case("without an optimizer: the call that is the step", called(0)),
    Case("the same: another module of its class", called(1)),
    Case("the same: the call on another thread", beside),
    Case("a backward without an optimizer: has it an update", by_hand),
    Case("probe_agent.span, the span itself included", a_span),
    Case("torch.save, a row of python.checkpoints", a_save),
    Case("a row of python.replicas of 32 parameters", a_checksum),
    Case("probe_agent.record, 1 column", a_row(1)),
    Case("probe_agent.record, 10 columns", a_row(10)),
)


def block_ns(call: Callable[[], object], num_calls: int) -> float:
    """Return the nanoseconds of this thread's CPU time per call."""
    call()
    call()
    began = thread_time()
    for _ in range(num_calls):
        call()
    return (thread_time() - began) / num_calls * 1e9


def compare(made: Made, hows: Sequence[str], num_rounds: int, num_calls: int) -> dict[str, list[float]]:
    """Return the nanoseconds per call in each way, round by round."""
    seen: dict[str, list[float]] = {how: [] for how in hows}
    for _ in range(num_rounds):
        for how in random.sample(hows, len(hows)):
            with nullcontext() if how == NONE else recording(how) as recorder:
                seen[how].append(block_ns(made(recorder), num_calls))
    return seen


def show(values: Sequence[float], digits: int = 0) -> str:
    """Format the median and the quartiles."""
    low, middle, high = quantiles(values, n=4)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def more(seen: dict[str, list[float]], how: str, num: int = 1) -> list[float]:
    """Format the difference from the time without the recorder, round by round."""
    return [(one - bare) / num for one, bare in zip(seen[how], seen[NONE], strict=True)]


def each_hook(num_rounds: int, num_calls: int) -> str:
    rows = []
    for case in CASES:
        seen = compare(case.made, (NONE, case.how), num_rounds, max(4, num_calls // case.num))
        bare = show([value / case.num for value in seen[NONE]])
        rows.append([case.name, bare, show(more(seen, case.how, case.num))])
    return table(["ns a call", "without the recorder", "the hook takes"], rows)


def by_size(num_rounds: int) -> str:
    rows = []
    for size in SIZES:
        seen = compare(steps_of(size), (NONE, UNSAMPLED, SAMPLED), num_rounds, max(2, CALLS_A_BLOCK // size))
        a_module = show(more(seen, SAMPLED, (size + 1) * 1_000), 2)
        unsampled, sampled = (show([ns / 1e3 for ns in more(seen, how)], 1) for how in (UNSAMPLED, SAMPLED))
        rows.append([f"{size:,}", show([ns / 1e3 for ns in seen[NONE]], 1), unsampled, sampled, a_module])
    headings = ["modules", "a step without the recorder, µs", "more, not sampled", "more, sampled", "per module"]
    return table(headings, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="blocks of each kind")
    parser.add_argument("--calls", type=int, default=4_000, help="calls per block")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"Medians and quartiles of {args.rounds} rounds, CPU time of the thread.\n")
    print(each_hook(args.rounds, args.calls), end="\n\n", flush=True)
    print(by_size(args.rounds), end="\n\n", flush=True)
    print(provenance())


if __name__ == "__main__":
    main()
