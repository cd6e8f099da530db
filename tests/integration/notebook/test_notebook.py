"""A notebook kernel started by jupyter_client: its cell comes first, and eval knows its names."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support import commands
from support.waiting import until

manager = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

BUSY = "def work(n):\n    while True:\n        n += 1"


@pytest.fixture(scope="module")
def kernel() -> Iterator[tuple[str, Any]]:
    """PID and client of a kernel whose second cell runs a function that the first has defined."""
    started, client = manager.start_new_kernel(kernel_name="python3", startup_timeout=90)
    try:
        client.execute(BUSY)
        client.execute("weights = [1, 2, 3]\nwork(0)")
        deadline = time.monotonic() + 60
        while client.get_iopub_msg(timeout=60)["content"].get("code", "") != "weights = [1, 2, 3]\nwork(0)":
            assert time.monotonic() < deadline
        yield str(started.provisioner.pid), started
    finally:
        started.shutdown_kernel(now=True)
        client.stop_channels()


def probe(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = commands.probe(*arguments)
    assert done.returncode == 0, done.stderr
    return done


def test_a_stack_that_is_read_from_outside_names_the_cells_apart(kernel: tuple[str, Any]) -> None:
    """First of all, because the other tests attach, and a recorder is asked once there is one."""
    in_cells = until(lambda: _frames_of_cells(kernel[0]))
    defined, called = (line.split(maxsplit=2) for line in in_cells)

    assert (defined[1], called[1]) == ("work", "<module>")
    assert re.fullmatch(r"notebook cell \d+, line [23]", defined[2])
    assert re.fullmatch(r"notebook cell \d+, line 2", called[2])
    assert defined[2].split(",")[0] != called[2].split(",")[0]


def _frames_of_cells(pid: str) -> list[str]:
    """The lines of frames in cells, once there are both: a busy machine may be late to run the second cell."""
    shown = probe("--no-inject", pid, "backtrace").stdout.splitlines()
    found = [line for line in shown if "notebook cell" in line]
    return found if len(found) == 2 else []


def test_the_cell_comes_first_and_the_kernels_frames_are_folded(kernel: tuple[str, Any]) -> None:
    pid, _ = kernel

    shown = probe(pid, "backtrace").stdout.splitlines()
    frames = json.loads(probe(pid, "backtrace", "--json").stdout)["threads"][0]["frames"]

    assert shown[1].split(maxsplit=2)[1:] in (["work", "In [1], line 2"], ["work", "In [1], line 3"])
    assert shown[2].strip() in ("while True:", "n += 1")
    assert shown[3].split(maxsplit=2)[1:] == ["<module>", "In [2], line 2"]
    assert shown[4].strip() == "work(0)"
    assert shown[5:] == [f"… {len(frames) - 2} frames of IPython (--json has them)"]
    assert len(frames) > 10


def test_eval_finds_the_names_of_the_notebook_and_of_the_running_cell(kernel: tuple[str, Any]) -> None:
    pid, _ = kernel

    found = probe(pid, "eval", "weights, n > 0")

    assert found.stdout.strip() == "([1, 2, 3], True)"
    assert "n: local of work() at In [1], line " in found.stderr


def test_without_a_running_cell_the_answer_says_so(kernel: tuple[str, Any]) -> None:
    pid, started = kernel
    started.interrupt_kernel()

    deadline = time.monotonic() + 30
    while "… no cell is running: " not in (shown := probe(pid, "backtrace").stdout):
        assert time.monotonic() < deadline, shown
