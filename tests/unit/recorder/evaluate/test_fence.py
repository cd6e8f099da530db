"""The exception that stops code lands in that code, or nowhere."""

from __future__ import annotations

import _thread
import subprocess
import sys
import time

from support.waiting import until

from probe_agent.recorder.evaluate.fence import MAX_SENDS, Fence


def test_code_that_runs_for_ever_is_stopped() -> None:
    fence = Fence()
    started: list[bool] = []

    def spin() -> None:
        started.append(True)
        while True:
            pass

    done = _run_in_thread(lambda: fence.run(spin))
    until(lambda: bool(started))
    fence.send()

    assert done.acquire(timeout=10)
    assert fence.stopped


#: Stops code in a thread, then calls a function in another one that has a tracer, as under a debugger.
TRACED = """
import sys, threading
from probe_agent.recorder.evaluate.fence import Fence

fence, started = Fence(), threading.Event()

def spin():
    started.set()
    while True:
        pass

stopped = threading.Thread(target=fence.run, args=[spin])
stopped.start()
started.wait()
fence.send()
stopped.join()

def trace(frame, event, argument):
    return trace

def traced():
    sys.settrace(trace)
    print(sum(number for number in range(9)), flush=True)

other = threading.Thread(target=traced)
other.start()
other.join()
"""


def test_threads_with_a_tracer_go_on_after_code_was_stopped() -> None:
    """In Python 3.11 a thread with a tracer waits for ever while an exception that nobody gets is announced."""
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=30)

    assert (done.stdout, done.stderr) == ("36\n", "")


def test_nothing_escapes_however_close_to_the_end_it_comes() -> None:
    escaped: list[BaseException] = []
    num_stopped = 0

    for round_ in range(300):
        fence = Fence()

        def life(fence: Fence = fence, round_: int = round_) -> None:
            try:
                fence.run(lambda: sum(range(round_ % 50)))  # type: ignore[arg-type]
                for _ in range(200):  # where a late one would come out
                    str(round_)
            except BaseException as error:  # noqa: BLE001 whatever it is, it should not be here
                escaped.append(error)

        done = _run_in_thread(life)
        while not done.acquire(timeout=0):
            fence.send()
        num_stopped += fence.stopped

    assert escaped == []
    assert num_stopped <= 300


def test_code_that_swallows_it_a_few_times_gets_it_no_more_often_than_the_fence_holds() -> None:
    fence = Fence()
    caught: list[bool] = []

    def swallow() -> None:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            try:
                time.sleep(0.001)
            except BaseException:  # noqa: BLE001 the very thing to survive
                caught.append(True)

    done = _run_in_thread(lambda: fence.run(swallow))
    while not done.acquire(timeout=0.002):
        fence.send()

    assert len(caught) + fence.stopped <= MAX_SENDS


def _run_in_thread(function: object) -> _thread.LockType:
    done = _thread.allocate_lock()
    done.acquire()

    def run() -> None:
        function()  # type: ignore[operator]
        done.release()

    _thread.start_new_thread(run, ())
    return done
