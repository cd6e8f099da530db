"""Loops without an optimizer, attached to from outside: their steps, their clock, their results."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from support.commands import ROOT, Probe, environment, probe_in
from support.forked import Forked
from support.waiting import until

from probe_agent.targets import Ring, Target, TargetDirectory

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
PROGRAM = ROOT / "tests" / "targets" / "loops.py"
WITH_MODULE = ("by_hand", "evolution", "inference", "pool", "server")
#: In the order in which they are known: of the server's, little time is the model's.
FOUND = ("by_hand", "evolution", "inference", "pool", "raw", "server")
DEADLINE_S = 120.0


class Loop:
    """One program of targets/loops.py."""

    def __init__(self, folder: Path, kind: str, probe: Probe) -> None:
        self.folder, self.kind, self.probe = folder, kind, probe
        folder.mkdir()
        self.process = Forked([PROGRAM, folder, kind], stdout=subprocess.PIPE, text=True, env=environment())
        self.pid = str(self.process.pid)
        self.told: dict[str, Any] = {}

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, sql: str) -> subprocess.CompletedProcess[str]:
        return self.probe(self.pid, "query", "--format", "json", sql)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        answer = self.ask(sql)
        assert answer.returncode in (0, 1), answer.stderr
        found: list[dict[str, Any]] = json.loads(answer.stdout)
        return found

    def target(self) -> Target:
        (found,) = (target for target in TargetDirectory().targets() if target.pid == self.process.pid)
        return found

    def is_found(self) -> bool:
        """Return whether its steps have rows, and its module, if it has one, is known: also steps that are not sampled
        show their forward. Read from the ring."""
        try:
            newest = Ring(self.target().ring_path("python.steps")).newest()
        except FileNotFoundError:
            return False
        return newest is not None and (self.kind == "raw" or (newest["forward"] is not None and not newest["sampled"]))

    def finish(self) -> None:
        """Let it run, and wait for its report."""
        (self.folder / "go").touch()
        until(lambda: (self.folder / "done.json").exists(), DEADLINE_S)
        self.told = json.loads((self.folder / "done.json").read_text())

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """Return those that ended while the program counted."""
        began, ended = self.told["began"], self.told["ended"]
        sql = "SELECT step, duration, forward, micro_batches, epoch(ts) AS ended FROM python.steps ORDER BY step"
        return [row for row in self.rows(sql) if began < row["ended"] <= ended]


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Loop]]:
    """All of them at once; each has been found, or given up, and has finished its run."""
    pytest.importorskip("torch")
    probe = probe_in(tmp_path_factory.mktemp("state"))
    folder = tmp_path_factory.mktemp("loops")
    running = {kind: Loop(folder / kind, kind, probe) for kind in (*FOUND, "nothing")}
    try:
        for loop in running.values():
            assert loop.line() == "ready"
            assert probe(loop.pid, "inject").returncode == 0
        # Set by hand it holds: on a busy machine the budget would leave no step of so short a run sampled.
        assert probe(running["pool"].pid, "config", "trace.every=5").returncode == 0
        running["nothing"].finish()
        for kind in FOUND:
            until(running[kind].is_found, DEADLINE_S)
            running[kind].finish()
        yield running
    finally:
        for loop in running.values():
            (loop.folder / "stop").touch()
            loop.process.terminate()
            loop.process.wait(30)


@pytest.mark.parametrize("kind", FOUND)
def test_steps_are_those_that_the_program_counts(loops: dict[str, Loop], kind: str) -> None:
    loop = loops[kind]

    steps = loop.steps

    assert len(steps) == loop.told["num"]
    assert len({step["step"] for step in steps}) == len(steps)
    assert {step["micro_batches"] for step in steps} == {1 if kind == "by_hand" else 0}


@pytest.mark.parametrize("kind", FOUND)
def test_their_sums_are_what_the_programs_own_clock_says(loops: dict[str, Loop], kind: str) -> None:
    loop = loops[kind]

    steps = loop.steps

    # In calls of 5 ms on a busy machine, a thread may lose its turn between the program's clock and ours: before a
    # call, or after one whose forward ends when backward begins.
    if kind in WITH_MODULE:
        assert 0.7 < sum(step["forward"] for step in steps) / loop.told["seconds"] < 1.3
    if kind not in ("pool", "server"):  # whose threads overlap, and whose first step began in the sleep before
        wall = loop.told["ended"] - loop.told["began"]
        assert 0.85 < sum(step["duration"] for step in steps) / wall < 1.05


@pytest.mark.parametrize("kind", [*FOUND, "nothing"])
def test_the_results_are_those_of_the_program_alone(loops: dict[str, Loop], kind: str) -> None:
    assert loops[kind].told["is_same"]
    assert "probe.errors" not in loops[kind].target().ring_tables


def test_the_modules_of_one_thread_of_the_pool_are_sampled(loops: dict[str, Loop]) -> None:
    sql = "SELECT DISTINCT module FROM python.torch_trace WHERE stage = 'forward'"

    until(lambda: {"Net", "Net.layers.0", "Net.head"} <= {row["module"] for row in loops["pool"].rows(sql)}, DEADLINE_S)


def test_a_loop_in_which_nothing_is_found_says_what_to_do(loops: dict[str, Loop]) -> None:
    answer = loops["nothing"].ask("SELECT step FROM python.steps")

    assert answer.returncode == 1
    assert json.loads(answer.stdout) == []
    assert "no optimizer step, no backward and no module call was seen" in answer.stderr
    assert "call probe_agent.step()" in answer.stderr


def test_detach_leaves_the_class_as_it_was(loops: dict[str, Loop]) -> None:
    loop = loops["inference"]

    assert loop.probe(loop.pid, "detach").returncode == 0
    (loop.folder / "stop").touch()

    assert loop.line() == "False"
