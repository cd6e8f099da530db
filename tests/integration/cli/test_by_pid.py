"""A bare PID: no server runs, and the agent comes by itself when the process has none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .conftest import Probe, environment

LOOP = """
import time
def rest():
    time.sleep(0.01)
print("ready", flush=True)
while True:
    rest()
"""


@contextmanager
def process(*arguments: str) -> Iterator[int]:
    """A Python process in a loop, ready."""
    with subprocess.Popen(
        [sys.executable, "-c", LOOP, *arguments], stdout=subprocess.PIPE, text=True, env=environment()
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            yield running.pid
        finally:
            running.kill()


@pytest.fixture
def pid() -> Iterator[str]:
    """A process without our agent."""
    with process() as number:
        yield str(number)


def test_the_first_question_attaches_and_says_so(pid: str, probe: Probe) -> None:
    first = probe(pid, "backtrace", "--json")
    second = probe(pid, "backtrace", "--json")

    assert first.returncode == 0, first.stderr
    assert f"attached to {pid} in" in first.stderr
    assert "attached" not in second.stderr
    assert "<module>" in [frame["func"] for frame in json.loads(second.stdout)["threads"][0]["frames"]]


def test_no_inject_leaves_the_process_alone(pid: str, probe: Probe) -> None:
    refused = probe("--no-inject", pid, "eval", "1")
    shown = probe("--no-inject", pid, "backtrace", "--json")
    listed = probe("list", "--format", "jsonl")

    assert refused.returncode == 4
    assert "--no-inject" in refused.stderr
    assert json.loads(shown.stdout)["source"] == "outside"
    states = {record["pid"]: record["state"] for record in map(json.loads, listed.stdout.splitlines())}
    assert states[int(pid)] == "no agent"


def test_doctor_says_that_nothing_stands_in_the_way(pid: str, probe: Probe) -> None:
    done = probe("doctor", pid, "--format", "json")

    assert done.returncode == 0, done.stdout
    assert {record["check"] for record in json.loads(done.stdout)}


def test_a_process_that_is_not_there_is_no_answer(probe: Probe) -> None:
    done = probe("4194303", "query", "SELECT 1")

    assert done.returncode == 4
    assert "4194303" in done.stderr


def test_inject_twice_and_detach_twice_are_no_accident(pid: str, probe: Probe) -> None:
    said = [probe(pid, verb) for verb in ("inject", "inject", "detach", "detach")]

    assert [done.returncode for done in said] == [0, 0, 0, 4]
    assert "attached already" in said[1].stderr
    assert f"detached from {pid}" in said[2].stderr


def test_several_targets_without_a_name_are_listed(probe: Probe) -> None:
    with process("one") as one, process("two") as two:
        for number in (one, two):
            probe(str(number), "inject")
        done = probe("backtrace")

    assert done.returncode == 2
    assert str(one) in done.stderr
    assert str(two) in done.stderr


def test_all_formats_come_from_a_real_target(pid: str, probe: Probe) -> None:
    sql = "SELECT func, depth, 'nan'::DOUBLE AS nothing FROM python.backtrace ORDER BY depth"

    outputs = {name: probe(pid, "query", sql, "--format", name) for name in ("table", "json", "jsonl", "csv")}

    assert {done.returncode for done in outputs.values()} == {0}
    assert json.loads(outputs["json"].stdout)[0]["nothing"] == "NaN"
    assert outputs["csv"].stdout.splitlines()[0] == "func,depth,nothing"


@pytest.mark.parametrize(
    ("question", "code"),
    [
        (("query", "SELECT * FROM python.backtrac"), 1),
        (("query", "SELECT count(*) FROM range(100000000000)", "--timeout", "0.3"), 1),
        (("eval", "1 / 0"), 1),
        (("eval", "while True: pass", "--timeout", "0.3"), 1),
        (("eval", "40 + 2"), 0),
        (("config", "trace.every=1"), 0),
        (("config", "trace.evry=1"), 2),
    ],
)
def test_exit_codes_say_what_went_wrong(pid: str, probe: Probe, question: tuple[str, ...], code: int) -> None:
    done = probe(pid, *question)

    assert done.returncode == code, done.stderr
    assert "probe_cli" not in done.stderr  # no traceback of ours
