"""Behaviour on every CPython that a target may run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.waiting import until

from .conftest import Target

Start = Callable[..., Target]


@pytest.fixture
def target(start: Start, any_python: Path) -> Target:
    return start(any_python, "eval_loop.py")


def test_names_resolve_at_every_depth_of_the_code(target: Target) -> None:
    code = (
        "def outer():\n"
        "    return [trainer.grad_clip + step for step in range(2)]\n"
        "def factorial(n):\n"
        "    return 1 if n < 2 else n * factorial(n - 1)\n"
        "class Shape:\n"
        "    clip = trainer.grad_clip\n"
        "    def scaled(self): return self.clip * scale\n"
        "answer: list = [outer(), factorial(5), Shape().scaled(), (lambda: scale)()]\n"
        "answer"
    )

    answer = target.eval(code)

    assert answer.result == "[[1.5, 2.5], 120, 15.0, 10]"
    assert len(answer.notes) == 1
    assert answer.notes[0].startswith("trainer: local of main() at eval_loop.py:")


def test_innermost_user_frame_comes_first(target: Target) -> None:
    answer = target.eval(
        "import time\nfor _ in range(500):\n    try:\n        fresh.number\n        break\n"
        "    except NameError:\n        time.sleep(0.001)\nself is trainer"
    )

    assert (answer.state, answer.result) == ("finished", "True"), answer.traceback


def test_an_unknown_name_says_where_we_looked_and_what_is_near(target: Target) -> None:
    answer = target.eval("trianer")

    assert answer.state == "failed"
    assert answer.traceback.startswith('Traceback (most recent call last):\n  File "<eval>", line 1, in <module>\n')
    assert "name 'trianer' is not defined (searched __main__" in answer.traceback
    assert "similar names: trainer" in answer.traceback
    assert "recorder" not in answer.traceback


def test_output_goes_only_to_the_client_that_asked(target: Target) -> None:
    answer = target.eval("import sys\nprint('one'); sys.stdout.write('two\\n')\nprint('three', file=sys.stderr)")
    restored = target.eval("import sys\nsys.stdout.isatty(), sys.stdin.closed")
    out, err = target.finish()

    assert (answer.stdout, answer.stderr, answer.state) == ("one\ntwo\n", "three\n", "finished")
    assert restored.result == "(False, False)"
    assert out.startswith("finished")
    assert err == ""


def test_importing_threading_first_leaves_the_main_thread_the_main_thread(target: Target) -> None:
    code = (
        "import threading\n"
        "for t in threading.enumerate():\n"
        "    print(t.name, t is threading.main_thread(), t.native_id == __import__('os').getpid())\n"
        "threading.current_thread() is threading.main_thread()"
    )

    answer = target.eval(code)
    later = target.eval("import threading\n[t.name for t in threading.enumerate()]")
    out, err = target.finish()

    assert answer.stdout == "MainThread True True\n"
    assert answer.result == "False"
    assert later.result == "['MainThread']"
    assert out.startswith("finished")
    assert err == ""


def test_endless_code_stops_at_its_timeout_and_the_job_goes_on(target: Target) -> None:
    stopped = target.eval("while True:\n    pass", timeout=0.2)
    swallowing = target.eval("while True:\n    try:\n        1 / 0\n    except Exception:\n        pass", timeout=0.2)
    at_step = target.eval("while True:\n    pass", timeout=0.2, at_step=True)
    before = int(target.eval("trainer.current_step").result)
    after = int(target.eval("import time\ntime.sleep(0.2)\ntrainer.current_step").result)
    out, err = target.finish()

    assert [stopped.state, swallowing.state, at_step.state] == ["timed out"] * 3
    assert stopped.notes in (["stopped in <eval>:1"], ["stopped in <eval>:2"])
    assert after > before
    assert out.rstrip().endswith("[]")  # nothing failed in us
    assert err == ""


def test_no_exception_of_the_code_reaches_the_job(target: Target) -> None:
    leaving = ["raise KeyboardInterrupt", "exit(3)", "raise SystemExit", "1/0", "1 +", "def f("]

    answers = [target.eval(code, at_step=at_step) for code in leaving for at_step in (True, False)]
    out, err = target.finish()

    assert {answer.state for answer in answers} == {"failed"}
    assert all("recorder" not in answer.traceback for answer in answers)
    assert out.startswith("finished")
    assert err == ""


def test_reading_locals_keeps_none_of_them_alive(target: Target) -> None:
    code = "(batch.number >= 0, trainer.total >= 0)"

    for at_step in (True, False) * 10:  # at a step first: before it there is no batch
        assert target.eval(code, at_step=at_step).state == "finished"
    alive = target.eval("import __main__\n__main__.Batch.alive", at_step=True)
    out, _ = target.finish()

    assert int(alive.result) <= 2  # the loop's own batch, and the one being made
    assert int(out.split()[2]) <= 1


def test_names_of_an_anonymous_eval_are_freed_and_a_session_keeps_them(target: Target) -> None:
    make = "import __main__\nkept = __main__.Batch(-1)\nkept.mark = 'kept'\ndef use():\n    return kept\n"
    count = "import gc\nsum(getattr(o, 'mark', '') == 'kept' for o in gc.get_objects() if type(o).__name__ == 'Batch')"
    quiet = "import gc\ngc.disable()"
    target.eval(quiet)

    target.eval(make)
    after_anonymous = target.eval(count)
    target.eval(make, session="mine")
    after_session = target.eval(count)
    used = target.eval("use().mark", session="mine")

    assert after_anonymous.result == "0"
    assert after_session.result == "1"
    assert used.result == "'kept'"


def test_a_function_left_behind_in_the_job_still_finds_its_names(target: Target) -> None:
    leave = (
        "import math\nseen = []\n"
        "original = trainer.training_step\n"
        "def counted(*arguments):\n    seen.append(math.sqrt(len(str(scale)))); return original(*arguments)\n"
        "trainer.training_step = counted; trainer.seen = seen"
    )

    target.eval(leave, at_step=True)
    answer = target.eval("import time\ntime.sleep(0.1)\nlen(trainer.seen) > 3", at_step=False)
    out, err = target.finish()

    assert answer.result == "True"
    assert out.startswith("finished")
    assert err == ""


def test_stacks_name_the_line_being_executed(target: Target) -> None:
    threads = target.ask("stacks", all=True)[-1]["threads"]
    alone = target.ask("stacks", all=False)[-1]["threads"]

    main = threads[0]
    assert (main["is_main"], main["is_training"], main["is_probe"]) == (True, True, False)
    assert main["tid"] == target.process.pid
    assert main["frames"][-1]["func"] == "<module>"
    assert main["frames"][-2]["func"] == "main"
    assert any(thread["is_probe"] for thread in threads)
    assert [thread["ident"] for thread in alone] == [main["ident"]]


def test_faulthandler_writes_the_main_threads_stack_on_our_signal(target: Target) -> None:
    number = target.ask("hello")[-1]["stacks_signal"]
    before = target.eval("trainer.current_step").result

    os.kill(target.process.pid, number)
    after = target.eval("import time\ntime.sleep(0.05)\ntrainer.current_step")

    assert signal.SIGRTMIN <= number <= signal.SIGRTMAX
    until(lambda: any(f"in {name}" in Path(target.path + ".stacks").read_text() for name in ("training_step", "main")))
    assert int(after.result) > int(before)
