"""Who holds the lock that a rank waits for, told by the stacks of its threads with local variables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probe_agent.wire import Backtrace, Frame, ThreadStack
from probe_cli.cluster.hang.locks import Held, holder

LOCKED = "<lock 0x7f01, locked>"
JOB = "/home/me/train.py"


def frame(
    func: str,
    line: str,
    locals_: dict[str, str] | None = None,
    *,
    lineno: int = 88,
    file: str = JOB,
    under: tuple[str, ...] = (),
) -> Frame:
    return Frame(func, file, lineno, 0, "python", line, locals_, under)


def thread(name: str, ident: int, *frames: Frame, syscall: str = "futex") -> ThreadStack:
    is_main = name == "MainThread"
    return ThreadStack(
        name, ident, ident, is_main, is_main, False, frames, state="sleeping", syscall=syscall, waits_in="x"
    )


def stacks(*threads: ThreadStack) -> Backtrace:
    return Backtrace(threads, "recorder", ())


def waiting(locals_: dict[str, str] | None, line: str = "with self.lock:") -> ThreadStack:
    return thread("MainThread", 7, frame("save", line, locals_), frame("<module>", "save()"))


def test_the_owner_that_an_rlock_names_is_told_with_what_it_does() -> None:
    owned = "<RLock held by thread keep (er) (9)>"
    keeper = thread("keep (er)", 9, frame("keep", "time.sleep(60)", {"lock": owned}, lineno=12))

    said = holder(stacks(waiting({"self": "<Trainer>", "self.lock": owned, "done": LOCKED}), keeper))

    assert said == Held("self.lock is held by its thread keep (er), which sleeps in keep (train.py:12)")


def test_of_a_plain_lock_the_thread_that_runs_under_it_is_told_with_both_places() -> None:
    keeper = thread(
        "uploader",
        9,
        frame("sleep_on", "time.sleep(60)", lineno=30),
        frame("upload", "sleep_on()", {"queue_lock": LOCKED}, lineno=12, under=("queue_lock",)),
    )
    knows_it = thread("logger", 10, frame("log", "time.sleep(60)", {"lock": LOCKED}))

    said = holder(stacks(waiting({"self.lock": LOCKED}), knows_it, keeper))

    assert said == Held(
        "self.lock is held by its thread uploader, which sleeps in sleep_on (train.py:30), since upload (train.py:12)"
    )


def test_without_its_source_the_threads_whose_functions_name_the_lock_may_hold_it() -> None:
    knows_it = thread("logger", 10, frame("log", "", {"lock": LOCKED}, lineno=12), syscall="nanosleep")

    said = holder(stacks(waiting({"self.lock": LOCKED}), knows_it))

    assert said == Held("self.lock may be held by its thread logger, which sleeps in log (train.py:12)")


def test_threads_that_wait_for_the_same_lock_do_not_hold_it() -> None:
    waits_too = thread("second", 9, frame("save", "with self.lock:", {"self.lock": LOCKED}))

    said = holder(stacks(waiting({"self.lock": LOCKED}), waits_too))

    assert said == Held("self.lock is locked, and no other thread is in a function that names it: it was not released")


def test_two_threads_that_hold_what_the_other_waits_for_are_told() -> None:
    other = "<lock 0x7f02, locked>"
    logger = thread("logger", 9, frame("log", "with a:", {"a": other, "b": LOCKED}, lineno=12, under=("b",)))
    main = thread("MainThread", 7, frame("save", "with b:", {"a": other, "b": LOCKED}, under=("a",)))

    assert holder(stacks(main, logger)) == Held(
        "b is held by its thread logger, which waits for a lock in log (train.py:12);"
        " a is held by the thread that waits, since save (train.py:88): a deadlock",
        is_deadlock=True,
    )


def test_a_thread_that_waits_for_a_lock_as_well_may_hold_one_that_no_function_names() -> None:
    acquires = thread(
        "acquires", 9, frame("score", "with self.lock:", {"self.lock": "<lock 0x7f02, locked>"}, lineno=12)
    )

    assert holder(stacks(waiting({"self.lock": LOCKED}), acquires)) == Held(
        "self.lock is locked, and no other thread is in a function that names it;"
        " its thread acquires, which waits for a lock in score (train.py:12), may hold it"
    )


@pytest.mark.parametrize("of_main", [True, False])
def test_who_holds_the_lock_and_waits_for_another_one_is_no_deadlock_by_itself(of_main: bool) -> None:
    mine, third = "<RLock held by thread MainThread (7)>", "<RLock held by thread third (11)>"
    logger = thread("logger", 9, frame("log", "with a:", {"a": mine if of_main else third}, lineno=12, under=("b",)))
    logger = replace(
        logger, frames=(replace(logger.frames[0], locals={**(logger.frames[0].locals or {}), "b": LOCKED}),)
    )
    main = thread("MainThread", 7, frame("save", "with b:", {"b": LOCKED}))

    held = holder(stacks(main, logger))

    assert held is not None
    assert held.is_deadlock is of_main
    assert held.said.startswith("b is held by its thread logger, which waits for a lock in log (train.py:12)")


def test_a_thread_that_takes_a_lock_twice_is_told_and_one_that_only_passes_it_on_is_not() -> None:
    inner = frame("inner", "with lock:", {"lock": LOCKED})
    outer = frame("outer", "inner()", {"guard": LOCKED}, lineno=12, under=("guard",))

    assert holder(stacks(thread("MainThread", 7, inner, outer))) == Held(
        "lock is held by the same thread, since outer (train.py:12): a deadlock", is_deadlock=True
    )
    assert "is locked, and no other thread" in str(
        holder(stacks(thread("MainThread", 7, inner, replace(outer, locks=()))))
    )


def test_a_lock_that_a_library_takes_for_the_job_is_found() -> None:
    owned = "<RLock held by thread keeper (9)>"
    acquire = frame("acquire", "self.lock.acquire()", {"self.lock": owned}, file="/usr/lib/python3.11/logging/x.py")
    main = thread("MainThread", 7, acquire, frame("train", "log.info(1)", {}))

    assert holder(stacks(main)) == Held("self.lock is held by its thread keeper")


@pytest.mark.parametrize(
    ("locals_", "line"),
    [
        (None, "with self.lock:"),
        ({"lock": "<lock 0x7f01, unlocked>"}, "with self.lock:"),
        ({"own": "<RLock held by thread MainThread (7)>"}, "with self.lock:"),
        ({"a": LOCKED, "b": "<lock 0x7f02, locked>"}, "with held():"),
    ],
)
def test_nothing_is_said_of_locks_that_leave_a_doubt(locals_: dict[str, str] | None, line: str) -> None:
    assert holder(stacks(waiting(locals_, line))) is None
