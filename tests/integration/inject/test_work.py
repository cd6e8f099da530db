"""A working program computes the same, however often it is attached to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.waiting import until

from probe_agent import inject

from .conftest import LEFT_NOTHING, Target, detach


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            "torch_sum",
            marks=[
                pytest.mark.torch,
                pytest.mark.situation("sums a tensor with vector instructions", "no wrong sum"),
            ],
        ),
        pytest.param(
            "numpy_sum",
            marks=[
                pytest.mark.long,
                pytest.mark.situation("sums a NumPy array with vector instructions", "no wrong sum"),
            ],
        ),
        pytest.param(
            "float_sum",
            marks=[
                pytest.mark.long,
                pytest.mark.situation("adds floating-point numbers in CPython", "no wrong sum"),
            ],
        ),
    ],
)
def test_a_sum_is_never_wrong(start: Callable[..., Target], name: str) -> None:
    if name == "torch_sum":
        pytest.importorskip("torch")
    target = start(name)

    for _ in range(3):
        detach(inject.attach(target.pid))
    end = target.finish()

    assert end["result"]["wrong"] == 0
    assert end["result"]["rounds"] > 100


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("malloc", marks=pytest.mark.situation("does nothing but malloc and free", "goes on")),
        pytest.param("fork", marks=pytest.mark.situation("does nothing but fork", "goes on; every child is clean")),
        pytest.param("dlopen", marks=pytest.mark.situation("does nothing but dlopen and dlclose", "goes on")),
        pytest.param("collect", marks=pytest.mark.situation("collects garbage all the time", "goes on")),
    ],
)
def test_a_program_that_does_nothing_but_this_goes_on(start: Callable[..., Target], name: str) -> None:
    target = start(name)

    for _ in range(3):
        detach(inject.attach(target.pid))
    end = target.finish()

    assert end["left"] == LEFT_NOTHING
    assert end["result"]["rounds"] > 0
    assert end["result"]["wrong"] == 0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            "signals",
            marks=pytest.mark.situation(
                "a timer (SIGALRM) every millisecond with a Python handler, and real-time signals in bursts",
                "every signal is counted, the timer goes on",
            ),
        ),
        pytest.param(
            "children",
            marks=pytest.mark.situation(
                "children that end all the time (SIGCHLD)", "every child is noticed and reaped"
            ),
        ),
        pytest.param(
            "every_signal",
            marks=pytest.mark.situation(
                "a handler for every signal that can have one, and all of them sent all the time",
                "every signal is counted; stacks while the GIL is held are not to be had: no signal is free",
            ),
        ),
    ],
)
def test_no_signal_is_lost_and_none_stops_an_attach(start: Callable[..., Target], name: str) -> None:
    target = start(name)

    for _ in range(3):
        detach(inject.attach(target.pid))
    end = target.finish()

    assert end["left"] == LEFT_NOTHING
    assert end["result"]["rounds"] > 0
    assert end["result"]["wrong"] == 0


@pytest.mark.busy_machine("a thread that gets no processor does not stop, and the attach is refused")
@pytest.mark.situation(
    "signal handlers that raise, hundreds of times a second",
    "every exception reaches the program, but for one in the microsecond of a callback of the garbage collector",
)
def test_an_exception_of_a_signal_handler_reaches_the_program(start: Callable[..., Target]) -> None:
    target = start("interrupts")

    for _ in range(10):
        detach(inject.attach(target.pid))
    end = target.finish()

    assert end["result"]["rounds"] > 0
    assert end["result"]["wrong"] == 0


#: Signals 32 and 33, which the C library keeps for itself from the first thread of a process on.
OF_GLIBC = 3 << 31


def snapshot(pid: int) -> dict[str, object]:
    """Return everything that an attach could leave behind in a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "signals": [int(status[name], 16) & ~OF_GLIBC for name in ("SigBlk", "SigIgn", "SigCgt")],
    }


def num_mappings(pid: int) -> int:
    return len(Path(f"/proc/{pid}/maps").read_text().splitlines())


@pytest.mark.busy_machine("a thread that gets no processor does not stop, and the attach is refused")
@pytest.mark.situation(
    "attached to and detached from again and again",
    "threads, descriptors, signals, files and mappings as before",
)
def test_twenty_attaches_leave_nothing_behind(start: Callable[..., Target]) -> None:
    target = start("spin")
    before = snapshot(target.pid)

    for number in range(20):
        attached = inject.attach(target.pid)
        detach(attached)
        assert not attached.folder.exists()
        if number == 12:  # by then the garbage of the first ones has been collected
            num_warm = num_mappings(target.pid)
    until(lambda: snapshot(target.pid) == before, says=lambda: f"{snapshot(target.pid)}, not {before}")
    num_in_the_end = num_mappings(target.pid)
    end = target.finish()

    assert num_in_the_end <= num_warm + 4
    assert list(attached.folder.parent.glob(f"{attached.folder.name}*")) == []
    assert end["left"] == LEFT_NOTHING
