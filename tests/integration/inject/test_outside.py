"""Stacks read from outside, in every installed Python; the thread that holds the GIL is named, if there is one."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.commands import plain
from support.waiting import until

from probe_agent.errors import NoAnswer
from probe_agent.inject import read_stacks
from probe_agent.inject.gil_watch import LOADING, GilWatch
from probe_agent.inject.threads.tracee import Tracee

from .conftest import installed_pythons

PROGRAM = Path(__file__).parents[2] / "targets" / "held_gil.py"


#: Calls forty functions, one in the other, again and again.
CALLS = "def down(n): n and down(n - 1)\nwhile True: down(40)"


@contextmanager
def job(python: str, call: str) -> Iterator[subprocess.Popen[str]]:
    """A job that holds its GIL, or is about to."""
    unset = plain()
    command = [python, str(PROGRAM), call, "now"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=unset) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def holders(pid: int) -> list[tuple[str | None, str]]:
    """Return each thread that holds the GIL, and its innermost function of held_gil.py; "" while it starts."""
    return [
        (thread.thread, next((frame.func for frame in thread.frames if frame.file == str(PROGRAM)), ""))
        for thread in read_stacks(pid)
        if thread.holds_gil
    ]


@pytest.mark.parametrize("python", installed_pythons())
def test_every_installed_python_tells_who_holds_its_gil(python: str) -> None:
    with job(python, "regex") as by_main, job(python, "thread") as by_other:
        until(lambda: holders(by_main.pid) == [("MainThread", "regex")])
        until(lambda: holders(by_other.pid) == [("holder", "hold")])

        (alone,), (main, other) = read_stacks(by_main.pid), read_stacks(by_other.pid)
        by_other.send_signal(signal.SIGUSR1)
        until(lambda: holders(by_other.pid) == [])
        output, errors = by_other.communicate("enough\n", timeout=60)

    assert (alone.is_main, alone.tid) == (main.is_main, main.tid - by_other.pid + by_main.pid) == (True, by_main.pid)
    assert [frame.func for frame in alone.frames][-2:] == ["regex", "<module>"]
    assert [frame.depth for frame in alone.frames] == list(range(len(alone.frames)))
    assert not other.is_main
    assert (output, errors) == ("1\n", ""), "it does not notice that it is read"


@pytest.mark.parametrize("python", installed_pythons())
def test_a_stack_that_changes_while_it_is_read_is_whole(python: str) -> None:
    """Before it was read anew, 30 of 60 such stacks lacked their outer part in Python 3.9 and 3.10."""
    with subprocess.Popen([python, "-S", "-c", CALLS]) as process:
        try:
            until(lambda: len(read_stacks(process.pid)[0].frames) > 20)
            outermost = [read_stacks(process.pid)[0].frames[-1].func for _ in range(12)]
        finally:
            process.kill()

    assert outermost.count("<module>") >= 8, outermost


def test_a_process_that_is_not_python_has_no_stacks_and_says_so() -> None:
    with subprocess.Popen(["sleep", "30"]) as process:
        try:
            with pytest.raises(NoAnswer, match="cannot be read from outside: py-spy says: ") as refused:
                read_stacks(process.pid)
        finally:
            process.kill()

    assert f"probe doctor {process.pid}" in refused.value.hint


@pytest.mark.parametrize(("function", "is_kept"), [("somebody", True), (LOADING, False)])
@pytest.mark.parametrize("python", installed_pythons())
def test_a_gil_that_our_own_loading_thread_has_is_not_kept(python: str, function: str, is_kept: bool) -> None:
    """On a busy machine it may wait for a processor for long while it holds the GIL."""
    code = f"def {function}(): print(flush=True); sum(range(10**12))\n{function}()"
    with subprocess.Popen([python, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            watch = GilWatch(Tracee(process.pid))
            found = set()
            for _ in range(10):  # on a busy machine a look may take too long, and shows nothing
                watch.next_look = 0.0
                found.add(watch.is_kept())
        finally:
            process.kill()

    assert (True in found) == is_kept
    assert watch.holder is not None
