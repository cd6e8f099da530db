"""The walk over frames of other threads while the collector lets go of the GIL."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

from probe_agent.recorder.guest.walk import frames_of, lines_of, variables

#: Makes the collector run in the middle of walks, with a callback that sleeps, beside a thread that enters and leaves
#: functions. With `f_back` alone CPython 3.11 crashes in it within a few seconds.
PROGRAM = """
import gc, threading, time
from probe_agent.recorder.guest.walk import frames_of, lines_of, variables

class Tracked:
    pass

def inner(number, one, two): return number
def middle(number, one): return inner(number, one, 2)
def outer(number): return middle(number, 1)

def work():
    while not over:
        outer(0)
        middle(0, 1)
        eval(compile("1 + 1", "code", "eval"))

def sleep(phase, info):
    if threading.get_ident() == walker:
        time.sleep(0.00005)

over, walker, found = False, threading.get_ident(), set()
thread = threading.Thread(target=work)
thread.start()
gc.callbacks.append(sleep)
end = time.monotonic() + 4
while time.monotonic() < end:
    gc.disable()
    tracked = None
    tracked = [Tracked() for _ in range(60)]  # so many that the next object makes the collector run
    gc.set_threshold(50, 1000, 1000)
    gc.enable()
    frames = frames_of(thread.ident)
    names = [frame.f_code.co_name for frame in frames]
    assert names[-3:] == ["run", "_bootstrap_inner", "_bootstrap"], names
    found.update(*map(variables, frames[:-3]))
over = True
print("number" in found)
"""

#: Asks for all stacks while a thread enters and leaves functions and generators, with the interval of an answer.
MOVING = """
import sys, threading, time
from contextlib import contextmanager
from probe_agent.recorder.guest.switch_interval import SHORT_S
from probe_agent.recorder.operations import stacks

@contextmanager
def inner():
    sum(range(50)); yield; sum(range(50))

def middle():
    for number in range(20):
        with inner():
            yield number

def outer():
    while not over:
        for number in middle():
            sum(range(number))

over, num_asked, num_inside = False, 0, 0
thread = threading.Thread(target=outer, daemon=True)
thread.start()
sys.setswitchinterval(SHORT_S)
end = time.monotonic() + 3
while time.monotonic() < end:
    (frames,) = [one["frames"] for one in stacks.take(True, thread.ident, ()) if one["is_training"]]
    names = [frame["func"].rpartition(".")[2] for frame in frames]
    assert names[-4:] == ["outer", "run", "_bootstrap_inner", "_bootstrap"], names
    assert "inner" not in names or "middle" in names, names
    num_asked += 1
    num_inside += "inner" in names
over = True
print(num_asked > num_inside > 10)
"""


def test_a_collector_that_lets_go_of_the_gil_does_no_harm() -> None:
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", PROGRAM], capture_output=True, text=True)

    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_a_stack_is_of_one_moment_though_the_thread_gets_the_gil_at_each_bytecode() -> None:
    done = subprocess.run([sys.executable, "-c", MOVING], capture_output=True, text=True)

    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_the_frames_of_this_thread_are_those_of_the_interpreter() -> None:
    expected, frame = [], sys._getframe()
    while frame is not None:
        expected.append(frame)
        frame = frame.f_back
    own = threading.get_ident()

    assert frames_of(own)[-len(expected) :] == expected  # those of the walk come first
    assert [line for _, line in lines_of(own)][-len(expected) + 1 :] == [frame.f_lineno for frame in expected[1:]]
    assert frames_of(None) == frames_of(1) == []
    assert variables(expected[0])["expected"] is expected
    expected.clear()


def test_the_collector_is_left_as_the_job_has_set_it() -> None:
    own = threading.get_ident()
    assert gc.isenabled()
    frames_of(own)
    assert gc.isenabled()
    gc.disable()
    try:
        frames_of(own)
        assert not gc.isenabled()
    finally:
        gc.enable()
