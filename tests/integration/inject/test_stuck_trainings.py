"""Jobs that wait for a rank, a worker or a thread: attached to at once, and their results are right."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest
from support.commands import plain
from support.forked import Forked
from support.waiting import until

from probe_agent import inject

from .conftest import detach, is_asleep

PROGRAM = Path(__file__).parents[2] / "targets" / "stuck_training.py"
#: It takes about 50 ms, and under 1 s with a free processor; this machine may be busy with other tests.
ATTACH_S = 3.0


@contextmanager
def training(name: str, go: Path, *rank: str) -> Iterator[subprocess.Popen[str]]:
    """A job that is about to wait."""
    unset = plain()
    command = [PROGRAM, name, go, *rank]
    with Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=unset) as process:
        try:
            yield process
        finally:
            process.kill()


def become_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    until(lambda: is_asleep(process.pid))


def attach_and_detach(pid: int) -> tuple[str, float]:
    """Return the way in and the duration: the shortest of three attaches, because other tests may use the processor."""
    ways, took_s = set(), []
    for _ in range(3):
        began = monotonic()
        attached = inject.attach(pid)
        took_s.append(monotonic() - began)
        ways.add(attached.how)
        detach(attached)
    (way,) = ways
    return way, min(took_s)


def end(process: subprocess.Popen[str]) -> str:
    """Return its last output; nothing of ours is on its streams."""
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "probe" not in errors.lower()
    return output.strip()


@pytest.mark.busy_machine("the agent has to load within its limit beside ranks that take every processor")
@pytest.mark.torch
@pytest.mark.situation(
    "in a dist.all_reduce that another rank does not join (gloo)",
    "attached in under 1 s; the collective completes with the right sum once that rank joins",
)
def test_a_collective_that_does_not_return(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with training("all_reduce", go, "0") as waiting, training("all_reduce", go, "1") as absent:
        become_ready(waiting)
        become_ready(absent)

        way, took_s = attach_and_detach(waiting.pid)
        is_stuck = waiting.poll() is None
        go.touch()
        results = [end(waiting), end(absent)]

    assert way == "quiet thread"
    assert took_s < ATTACH_S
    assert is_stuck
    assert results == ["[0.0, 3.0, 6.0, 9.0]"] * 2


@pytest.mark.torch
@pytest.mark.situation(
    "waiting for a slow DataLoader worker",
    "attached in under 1 s; every batch arrives, in order",
)
def test_a_data_loader_that_waits_for_its_worker(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with training("loader", go) as waiting:
        become_ready(waiting)

        way, took_s = attach_and_detach(waiting.pid)
        go.touch()
        result = end(waiting)

    assert way == "quiet thread"
    assert took_s < ATTACH_S
    assert result == "[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]"


@pytest.mark.situation(
    "its main thread waits in join() for a thread that lets go of the GIL at every call",
    "attached in under 1 s; that thread works on",
)
def test_a_main_thread_that_waits_for_a_busy_one(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with training("pulses", go) as waiting:
        become_ready(waiting)

        way, took_s = attach_and_detach(waiting.pid)
        go.touch()
        result = end(waiting)

    assert way == "quiet thread"
    assert took_s < ATTACH_S
    assert result == "0"
