"""Stacks of this very process."""

from __future__ import annotations

import os
import threading

from probe_agent.recorder import stacks


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


def test_what_our_hooks_call_on_the_jobs_behalf_shows_without_them() -> None:
    hook: dict[str, object] = {"__name__": "probe_agent.recorder.hooks.made_here"}
    exec("def stand_in(original): return original()", hook)

    (main,) = hook["stand_in"](lambda: stacks.take(False, None, ()))  # type: ignore[operator]
    functions = [str(frame["func"]).rpartition(".")[2] for frame in main["frames"]]

    assert functions[:2] == ["<lambda>", "test_what_our_hooks_call_on_the_jobs_behalf_shows_without_them"]
