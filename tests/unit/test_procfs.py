"""What /proc says about a process, whether it runs, has ended or is a thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from support.waiting import until

from probe_agent.procfs import ENDED, Process, read_process

NO_PID = 4_194_303


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    code = "import sys, signal; signal.signal(10, lambda *_: None); print(1, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, "naïve name"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"RANK": "3", "EMPTY": ""})
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_a_running_process_is_described(child: subprocess.Popen[bytes]) -> None:
    process = read_process(child.pid)

    assert process is not None
    assert process.is_alive
    assert not process.has_ended()
    assert (process.parent_pid, process.uid, process.gid) == (os.getpid(), os.geteuid(), os.getegid())
    assert process.is_python
    assert process.command[-1] == "naïve name"
    assert (process.environment["RANK"], process.environment["EMPTY"]) == ("3", "")
    assert process.catches(signal.SIGUSR1)
    assert not process.catches(signal.SIGUSR2)
    assert process.age_s < 60


def test_a_process_that_has_ended_keeps_what_was_first_seen_and_says_so(child: subprocess.Popen[bytes]) -> None:
    process = read_process(child.pid)
    assert process is not None

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    as_zombie = read_process(child.pid)
    ended_as_zombie = process.has_ended()
    child.communicate()

    assert as_zombie is not None
    assert (as_zombie.state, as_zombie.is_alive) == ("zombie", False)
    assert ended_as_zombie
    assert process.has_ended()
    assert process.is_alive
    assert read_process(child.pid) is None
    with pytest.raises(ENDED):
        process.status()


def test_how_long_threads_have_not_run_is_known_until_they_do(child: subprocess.Popen[bytes]) -> None:
    process = Process(child.pid)
    began = time.monotonic()

    until(lambda: process.asleep_s().get(child.pid, 0.0) > 1.2)
    asleep_s, took_s = process.asleep_s()[child.pid], time.monotonic() - began
    os.kill(child.pid, 10)  # it has a handler for it

    assert asleep_s < took_s + 1.0
    until(lambda: child.pid not in process.asleep_s())


def test_a_number_without_a_process_has_ended() -> None:
    assert read_process(NO_PID) is None
    assert Process(NO_PID).has_ended()


def test_threads_are_known_by_the_numbers_of_either_side() -> None:
    own = Process(os.getpid())
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    assert thread.native_id is not None

    found = own.threads(), own.outer(own.inner(thread.native_id))
    release.set()
    thread.join()

    assert found[0][0] == os.getpid()
    assert thread.native_id in found[0]
    assert found[1] == thread.native_id
    assert own.outer(NO_PID) is None
