"""Processes of a host that are ranks of one job, by the environment that launchers set."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from probe_agent.targets import siblings_of

#: Says that it runs, with the PID of a child that has inherited its environment; ends when its input does.
RANK = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()", "worker"])
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
"""

#: Maps a file, and says its number among the processes and its PID.
HOLDS_TORCH = """
import mmap, os, sys, time
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
os.write(1, f"{sys.argv[2]} {os.getpid()}\\n".encode())  # at once: three write to one pipe
time.sleep(60)
"""
#: As Lightning starts its ranks, beside another program.
STARTS_OTHERS = """
import os, subprocess, sys, time
if "LOCAL_RANK" in os.environ:
    os.write(1, f"{os.environ['LOCAL_RANK']} {os.getpid()}\\n".encode())
else:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29510", NODE_RANK="0", LOCAL_RANK="0", WORLD_SIZE="3")
    for rank in "12":
        subprocess.Popen([sys.executable, "-S", __file__], env={**os.environ, "LOCAL_RANK": rank})
    subprocess.Popen(["sleep", "60"])
time.sleep(60)
"""


class Started:
    """Processes with the environment of ranks."""

    def __init__(self, running: ExitStack) -> None:
        self._running = running

    def rank(self, rank: int, port: int = 29500, **more: str) -> int:
        told = {"RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": str(port), **more}
        process = self._running.enter_context(
            subprocess.Popen(
                [sys.executable, "-S", "-c", RANK],
                env={**os.environ, **told},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid


@pytest.fixture
def started() -> Iterator[Started]:
    with ExitStack() as running:
        yield Started(running)


def test_ranks_of_one_store_are_found_and_neither_their_workers_nor_another_jobs_ranks(started: Started) -> None:
    pids = [started.rank(rank, TORCHELASTIC_RUN_ID="none") for rank in (2, 0, 3)]
    started.rank(1, port=29501, TORCHELASTIC_RUN_ID="none")
    started.rank(1, TORCHELASTIC_RUN_ID="another")

    found = siblings_of(pids[1])

    assert found is not None
    assert found.by == "the store node1:29500"
    assert {rank: process.pid for rank, process in found.ranks} == dict(zip((2, 0, 3), pids, strict=True))


def test_of_two_targets_with_one_rank_the_named_one_is_used(started: Started) -> None:
    left, named, other = (started.rank(rank, port=29502) for rank in (0, 0, 1))

    found = siblings_of(named)

    assert found is not None
    assert {rank: process.pid for rank, process in found.ranks} == {0: named, 1: other}
    assert left not in [process.pid for _, process in found.ranks]


def test_of_what_a_parent_has_started_only_the_same_program_is_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "libtorch.so").write_bytes(b"mapped, as torch is in a process that trains")
    train, control = tmp_path / "train.py", tmp_path / "control.py"
    for script in (train, control):
        script.write_text(HOLDS_TORCH)
    python = f"{sys.executable} -S"
    commands = [f"{python} {script} {tmp_path}/libtorch.so {at}" for at, script in enumerate((train, train, control))]
    with subprocess.Popen(
        ["sh", "-c", " & ".join([*commands, "wait"])], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        pids = dict(line.split() for line in (parent.stdout.readline() for _ in commands))

        found = siblings_of(int(pids["1"]))

        os.killpg(parent.pid, signal.SIGKILL)
    assert found is not None
    assert {process.pid for _, process in found.ranks} == {int(pids["0"]), int(pids["1"])}


@pytest.mark.parametrize("asked", [0, 1])
def test_the_first_rank_of_a_host_and_those_that_it_has_started_are_found_from_each(tmp_path: Path, asked: int) -> None:
    (tmp_path / "train.py").write_text(STARTS_OTHERS)
    ours = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")}
    command = [sys.executable, "-S", "./train.py"]  # as one types it; the others are started with the whole path
    with subprocess.Popen(
        command, cwd=tmp_path, env=ours, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as first:
        assert first.stdout is not None
        pids = {0: first.pid} | {int(rank): int(pid) for rank, pid in (first.stdout.readline().split() for _ in "12")}

        found = siblings_of(pids[asked])

        os.killpg(first.pid, signal.SIGKILL)
    assert found is not None
    assert {rank: process.pid for rank, process in found.ranks} == pids
    assert found.by == f"what pid {first.pid} has started"


def test_a_process_of_which_nothing_says_that_it_is_a_rank_has_none() -> None:
    assert siblings_of(os.getpid()) is None
