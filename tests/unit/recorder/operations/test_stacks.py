"""Stacks of this very process."""

from __future__ import annotations

import _thread
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

from probe_agent.recorder.operations import stacks


def test_a_frame_shows_the_line_being_executed_and_not_the_def() -> None:
    (main,) = stacks.take(False, None, ())

    innermost = next(frame for frame in main["frames"] if str(frame["func"]).startswith("test_a_frame"))  # type: ignore[attr-defined]
    assert main["is_main"]
    assert main["tid"] == os.getpid()
    assert innermost["lineno"] == test_a_frame_shows_the_line_being_executed_and_not_the_def.__code__.co_firstlineno + 1
    assert innermost["file"] == __file__


def test_every_thread_has_its_name_and_its_part() -> None:
    release, ready = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        release.wait(10)

    worker = threading.Thread(target=wait, name="loader")
    worker.start()
    ready.wait(10)
    threads = stacks.take(True, worker.ident, {threading.get_ident()})
    release.set()
    worker.join()

    named = {thread["thread"]: thread for thread in threads}
    assert named["loader"]["tid"] == worker.native_id
    assert (named["loader"]["is_training"], named["loader"]["is_main"]) == (True, False)
    assert named["MainThread"]["is_probe"]
    assert threads[0] is named["MainThread"]


def test_without_all_the_main_and_the_training_thread_are_shown() -> None:
    assert [thread["is_main"] for thread in stacks.take(False, None, ())] == [True]


def test_calls_through_our_hooks_are_shown_without_them() -> None:
    hook: dict[str, object] = {"__name__": "probe_agent.recorder.hooks.made_here"}
    exec("def stand_in(original): return original()", hook)

    (main,) = hook["stand_in"](lambda: stacks.take(False, None, ()))  # type: ignore[operator]
    functions = [str(frame["func"]).rpartition(".")[2] for frame in main["frames"]]

    assert functions[:2] == ["<lambda>", "test_calls_through_our_hooks_are_shown_without_them"]


def test_a_thread_that_threading_does_not_know_has_the_kernels_number() -> None:
    numbers: list[int] = []
    ended = _thread.allocate_lock()
    ended.acquire()

    def run() -> None:
        numbers.append(_thread.get_native_id())
        ended.acquire()

    ident = _thread.start_new_thread(run, ())
    while not numbers:
        time.sleep(0.001)
    threads = {thread["ident"]: thread for thread in stacks.take(True, None, ())}
    ended.release()

    assert threads[ident]["tid"] == numbers[0]


def test_a_thread_of_a_subinterpreter_has_its_own_name_and_number(tmp_path: Path) -> None:
    code = f"""
        import threading, time
        def work():
            open({str(tmp_path / "tid")!r}, "w").write(str(threading.get_native_id()))
            time.sleep(5)
        threading.Thread(target=work, name="inner").start()
    """
    program = f"""
        import json, os, sys, textwrap, time
        sys.path.insert(0, {str(Path(stacks.__file__).parents[3])!r})
        try:
            import _interpreters
            made = _interpreters.create("legacy")
        except ImportError:
            import _xxsubinterpreters as _interpreters
            made = _interpreters.create(isolated=False)
        _interpreters.run_string(made, textwrap.dedent({code!r}))
        from probe_agent.recorder.operations import stacks
        while not os.path.exists({str(tmp_path / "tid")!r}) or not open({str(tmp_path / "tid")!r}).read():
            time.sleep(0.01)
        told = [[t["thread"], t["tid"], t["is_main"]] for t in stacks.take(True, None, ())]
        print(json.dumps(told), flush=True)
        os._exit(0)
    """

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)

    number = int((tmp_path / "tid").read_text())
    assert ["inner, of a subinterpreter", number, False] in json.loads(done.stdout), done.stderr
