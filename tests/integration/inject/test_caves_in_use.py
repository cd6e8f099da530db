"""A place that holds code is not given to another attach, nor cleaned, while a thread may still come to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from support.waiting import until

from probe_agent.inject.threads.code_caves import CodeCave, find_caves
from probe_agent.inject.threads.mailbox import ENTERED, NUM_BYTES, PENDING_CALL
from probe_agent.inject.threads.tracee import ThreadLook, Tracee

SLEEPS = "import time; print('ready', flush=True); time.sleep(600)"
#: Sleeps with the address that it reads among the arguments of a call, which lie on its stack.
SLEEPS_WITH_ADDRESS = """
import ctypes
libc = ctypes.CDLL(None)
print('ready', flush=True)
libc.poll(ctypes.c_void_p(int(input())), ctypes.c_ulong(0), ctypes.c_int(600_000))
"""


@contextmanager
def target(program: str) -> Iterator[tuple[subprocess.Popen[str], Tracee, CodeCave]]:
    """A process, and a place in it to which an attacher meant to send the main thread."""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            tracee = Tracee(process.pid)
            cave = find_caves(tracee)[0]
            tracee.write_memory(cave.mailbox.at, cave.mailbox.armed(process.pid, PENDING_CALL, cave.code))
            yield process, tracee, cave
        finally:
            process.kill()


class Watched(Tracee):
    """Says that a thread was looked at: the words have been read before."""

    has_looked = threading.Event()

    def look(self, tid: int) -> ThreadLook:
        self.has_looked.set()
        return super().look(tid)


def sleeps(tracee: Tracee) -> bool:
    return tracee.look(tracee.pid).state == "S"


def test_a_thread_that_comes_while_we_look_is_waited_for_until_its_code_has_run() -> None:
    with target(SLEEPS) as (process, tracee, cave), ThreadPoolExecutor(1) as looker:
        # Stopped, it stands for a thread that is starved of the processor: sent, and not come yet.
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: tracee.look(process.pid).state == "T")
        watched = Watched(process.pid)
        is_free = looker.submit(cave.is_free, watched, 5.0)
        assert watched.has_looked.wait(10)
        tracee.write_memory(cave.mailbox.state, ENTERED.to_bytes(4, "little"))
        os.kill(process.pid, signal.SIGCONT)

        assert not is_free.result()


def test_one_that_was_never_sent_and_sleeps_elsewhere_leaves_the_place_free() -> None:
    with target(SLEEPS) as (_, tracee, cave):
        until(lambda: sleeps(tracee))

        assert cave.is_free(tracee, 1.0)
        cave.clean_when_left(tracee, 1.0)
        assert not any(tracee.read_memory(cave.mailbox.at, NUM_BYTES))


def test_one_whose_stack_leads_to_the_place_comes_back_to_it() -> None:
    with target(SLEEPS_WITH_ADDRESS) as (process, tracee, cave):
        assert process.stdin is not None
        process.stdin.write(f"{cave.code}\n")
        process.stdin.flush()
        until(lambda: sleeps(tracee) and tracee.look(process.pid).syscall == 7)

        assert not cave.is_free(tracee, 0.2)
