"""The attach loops at full length: `python -m tests.integration.inject.full [SITUATION[=ROUNDS] …]`, about an hour.

Attaches to one process per situation and detaches from it, hundreds of times, and prints a row of a table when the
process has come to its own end: the errors it detected itself (a sum, a child, a signal that never came), how many
attaches failed or hung, how long an attach took and how long the borrowed thread stood still. In the `kill-` rows an
attaching process is killed at a random instant first, in every round. Failures are printed on stderr.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

from benchmarks.machine import provenance
from probe_agent import inject
from probe_agent.errors import ProbeError
from probe_agent.inject import payload
from probe_agent.inject.threads.tracee import Tracee

from .conftest import LEFT_NOTHING, Target, detach, in_child, situation

ROUNDS = {
    "torch_sum": 1000,
    "float_sum": 1000,
    "malloc": 300,
    "fork": 300,
    "dlopen": 300,
    "collect": 300,
    "signals": 300,
    "children": 300,
    "every_signal": 300,
    "interrupts": 300,
    "naps": 300,
    "kill-spin": 300,
    "kill-torch_sum": 300,
    "kill-naps": 300,
    "numpy_sum": 1000,
}
HEAD = """\
| situation | rounds | wrong | failed | hung | attach, ms: median | 99 % | most | stopped, µs: median | most | way in |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|"""
#: An attach that takes longer hangs; it is given up by its own time limit.
HANGS_S = 9.0
#: After so many attaches that failed a situation is given up.
ENOUGH = 5


@dataclass
class Figures:
    """The results of the rounds of one situation."""

    name: str
    wrong: int = 0
    num_failed: int = 0
    num_hung: int = 0
    attach_s: list[float] = field(default_factory=list)
    stopped_s: list[float] = field(default_factory=list)
    ways: Counter[str] = field(default_factory=Counter)

    @property
    def is_well(self) -> bool:
        return not (self.wrong or self.num_failed or self.num_hung)

    def complain(self, what: object) -> None:
        print(f"{self.name}, round {len(self.attach_s)}: {what!r}", file=sys.stderr, flush=True)

    def round(self, target: Target) -> None:
        """Attach and detach once."""
        began = perf_counter()
        try:
            attached = inject.attach(target.pid)
            self.attach_s.append(perf_counter() - began)
            if not attached.already:
                self.stopped_s.append(attached.stopped_s)
            self.ways["the killed one's" if attached.already else attached.how] += 1
            detach(attached)
        except (AssertionError, OSError, ProbeError) as error:
            self.complain(error)
            if perf_counter() - began > HANGS_S:
                self.num_hung += 1
            else:
                self.num_failed += 1

    def end(self, target: Target) -> None:
        """Let the program come to its own end, and read its report."""
        try:
            end = target.finish()
        except subprocess.TimeoutExpired as error:
            self.num_hung += 1
            self.complain(error)
            return
        except (AssertionError, IndexError, json.JSONDecodeError) as error:
            self.wrong += 1
            self.complain(error)
            return
        left = payload.folders(Tracee(os.getpid()))[0].parent
        if end["left"] != LEFT_NOTHING or any(left.glob(f"{target.pid}-*")):
            self.wrong += 1
        self.wrong += end["result"]["wrong"]
        print(f"{self.name}: {end}", file=sys.stderr, flush=True)

    def __str__(self) -> str:
        attach_ms = sorted(1e3 * one for one in self.attach_s) or [0.0]
        stopped_us = sorted(1e6 * one for one in self.stopped_s) or [0.0]
        return (
            f"| {self.name} | {len(self.attach_s)} | {self.wrong} | {self.num_failed} | {self.num_hung}"
            f" | {median(attach_ms):.0f} | {attach_ms[int(len(attach_ms) * 0.99)]:.0f} | {attach_ms[-1]:.0f}"
            f" | {median(stopped_us):.0f} | {stopped_us[-1]:.0f}"
            f" | {', '.join(f'{way}: {count}' for way, count in self.ways.most_common())} |"
        )


def rounds(name: str, count: int, folder: Path) -> Figures:
    """Run one situation."""
    figures, chance = Figures(name), random.Random(count)
    try:
        with situation(name.removeprefix("kill-"), folder) as target:
            for _ in range(count):
                if name.startswith("kill-"):
                    kill_an_attach(target, chance.uniform(0.0, 1.2 * median(figures.attach_s[-30:] or [0.1])))
                figures.round(target)
                if figures.num_failed + figures.num_hung >= ENOUGH or not target.is_alive():
                    break
            figures.end(target)
    except AssertionError as error:  # it wrote to its standard error
        figures.wrong += 1
        figures.complain(error)
    return figures


def kill_an_attach(target: Target, after_s: float) -> None:
    """Begin one in a separate process, and kill it after that time."""
    child = in_child(lambda: inject.attach(target.pid))
    sleep(after_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def main() -> int:
    """Run all, or the named ones; return 1 if one failed."""
    named = (argument.partition("=") for argument in sys.argv[1:])
    wanted = {name: int(count) if count else ROUNDS[name] for name, _, count in named} or ROUNDS
    is_well = True
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, count in wanted.items():
            figures = rounds(name, count, Path(folder))
            is_well = is_well and figures.is_well
            print(figures, flush=True)
    print("\n" + provenance())
    return 0 if is_well else 1


if __name__ == "__main__":
    raise SystemExit(main())
