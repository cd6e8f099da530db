"""Probe beside the other tools that attach, on the same programs in the same shuffled rounds.

Part of `python -m benchmarks.attach`. Every attach has a fresh process, because most of the tools cannot be removed
again. How long the main thread stands still is observed from outside, by the kernel's view of its state.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import sysconfig
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, perf_counter_ns, sleep

from .attachers import ATTACHERS, Attacher, NotInstalled
from .process import Program
from .quiet import wait_until_quiet
from .spread import table

__all__ = ["compare"]

#: What the table calls it -> the program, and whether it works while it is attached to.
TARGETS = {"training, mlp": ("blocks", True), "plain loop": ("spin", True), "main thread blocked": ("spin", False)}
#: How long we look for gaps before the attach, and after the answer.
BEFORE_S, AFTER_S = 1.0, 0.5
#: A program that does not work on by then after an attach hangs, and is ended.
HANGS_S = 90.0
#: Between two looks at the main thread's state.
LOOK_S = 0.0001


@contextmanager
def _mortal(program: Program) -> Iterator[None]:
    timer = threading.Timer(HANGS_S, partial(os.kill, program.pid, signal.SIGKILL))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@dataclass(frozen=True)
class Seen:
    """One attach that worked; a program that does nothing has no gaps."""

    answer_s: float
    stopped_s: float
    gap_s: float | None
    gap_before_s: float | None


class _Stops:
    """Total time for which a tracer has stopped a main thread."""

    def __init__(self, pid: int) -> None:
        self._path = f"/proc/{pid}/task/{pid}/stat"
        self._over = threading.Event()
        self.total_s = 0.0

    @contextmanager
    def watch(self) -> Iterator[None]:
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _look(self) -> None:
        last, was_stopped = perf_counter(), False
        while not self._over.is_set():
            try:
                is_stopped = Path(self._path).read_text().rpartition(")")[2].split()[0] == "t"
            except (FileNotFoundError, ProcessLookupError):
                return  # the tool has killed it: that is seen elsewhere
            now = perf_counter()
            if is_stopped and was_stopped:
                self.total_s += now - last
            last, was_stopped = now, is_stopped
            sleep(LOOK_S)


def attach_once(attacher: Attacher, folder: Path, program_name: str, works: bool) -> Seen:
    """Attach to a fresh process. Raises RuntimeError without an answer, or if the process does not survive."""
    environment = {"PYTHONPATH": sysconfig.get_path("purelib")}  # torch, for an interpreter without it
    with (
        tempfile.TemporaryDirectory() as free,
        Program(program_name, python=str(folder / "python"), environment=environment) as program,
        _mortal(program),
    ):
        program.block(seconds=0.5)
        wait_until_quiet()
        stops = _Stops(program.pid)
        if works:
            program.begin(until_told=1, pieces=1)
            sleep(BEFORE_S)
        with stops.watch():
            began = perf_counter_ns()
            attacher.attach(folder, program.pid, Path(free) / "file")
            ended = perf_counter_ns()
            sleep(AFTER_S)
        answer_s = (ended - began) * 1e-9
        program.begin(steps=0, seconds=0)
        block = program.end()
        if not works:
            return Seen(answer_s, stops.total_s, None, None)
        program.end()
        return Seen(
            answer_s,
            stops.total_s,
            block.longest_within_s(began, ended + int(AFTER_S * 1e9)),
            block.longest_within_s(began - int(BEFORE_S * 1e9), began),
        )


def compare(num_rounds: int) -> str:
    """Return the table: a row per tool and program, with failures counted and named."""
    folders: dict[str, Path] = {}
    seen: dict[tuple[str, str], list[Seen]] = {}
    failed: dict[tuple[str, str], list[str]] = {}
    for attacher in ATTACHERS:
        try:
            folders[attacher.name] = attacher.install()
        except NotInstalled as refusal:
            failed[attacher.name, "-"] = [f"not installed: {refusal}"]
    cells = [(attacher, target) for attacher in ATTACHERS if attacher.name in folders for target in TARGETS]
    shuffle = random.Random(0).sample
    for _ in range(num_rounds):
        for attacher, target in shuffle(cells, len(cells)):
            cell = attacher.name, target
            try:
                seen.setdefault(cell, []).append(attach_once(attacher, folders[attacher.name], *TARGETS[target]))
            except (RuntimeError, OSError) as failure:
                reason = "the program died" if isinstance(failure, BrokenPipeError) else str(failure).splitlines()[0]
                failed.setdefault(cell, []).append(reason)
                print(f"{attacher.name}, {target}: {failure}", file=sys.stderr)
    order = {attacher.name: number for number, attacher in enumerate(ATTACHERS)}
    rows = [
        _row(*cell, seen.get(cell, []), failed.get(cell, []))
        for cell in sorted(
            {*seen, *failed},
            key=lambda cell: (order[cell[0]], list(TARGETS).index(cell[1]) if cell[1] in TARGETS else 0),
        )
    ]
    headings = [
        "tool", "program", "worked", "failed", "main thread stopped, ms", "longest gap or step, ms",
        "in the second before, ms", "first answer, ms",
    ]  # fmt: skip
    return table(headings, rows)


def _row(tool: str, target: str, seen: list[Seen], failed: list[str]) -> list[object]:
    def show(values: list[float], digits: int) -> str:
        if not values:
            return "-"
        return f"{median(values) * 1e3:.{digits}f}, at most {max(values) * 1e3:.{digits}f}"

    reasons = "; ".join(f"{count}: {reason}" for reason, count in Counter(failed).items())
    return [
        tool,
        target,
        len(seen),
        reasons or "0",
        show([one.stopped_s for one in seen], 1),
        show([one.gap_s for one in seen if one.gap_s is not None], 1),
        show([one.gap_before_s for one in seen if one.gap_before_s is not None], 1),
        show([one.answer_s for one in seen], 0),
    ]
