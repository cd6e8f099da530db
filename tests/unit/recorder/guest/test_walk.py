"""The walk over frames of other threads while the collector lets go of the GIL."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

from probe_agent.recorder.guest.walk import innermost, outwards, variables

#: Makes the collector run in the middle of walks, with a callback that sleeps, beside a thread that enters and leaves
#: functions. With `f_back` alone CPython 3.11 crashes in it within a few seconds.
PROGRAM = """
import gc, threading, time
from probe_agent.recorder.guest.walk import innermost, outwards, variables

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
    frames = outwards(innermost().get(thread.ident))
    names = [frame.f_code.co_name for frame in frames]
    assert names[-3:] == ["run", "_bootstrap_inner", "_bootstrap"], names
    found.update(*map(variables, frames[:-3]))
over = True
print("number" in found)
"""


def test_a_collector_that_lets_go_of_the_gil_does_no_harm() -> None:
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", PROGRAM], capture_output=True, text=True)

    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_the_frames_of_this_thread_are_those_of_the_interpreter() -> None:
    own, expected, frame = sys._getframe(), [], sys._getframe()
    while frame is not None:
        expected.append(frame)
        frame = frame.f_back

    assert outwards(own) == expected
    assert outwards(innermost()[threading.get_ident()])[-len(expected) :] == expected  # those of the walk come first
    assert outwards(None) == []
    assert variables(own)["expected"] is expected
    expected.clear()


def test_the_collector_is_left_as_the_job_has_set_it() -> None:
    assert gc.isenabled()
    outwards(sys._getframe())
    assert gc.isenabled()
    gc.disable()
    try:
        outwards(sys._getframe())
        assert not gc.isenabled()
    finally:
        gc.enable()
