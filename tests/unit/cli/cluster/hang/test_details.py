"""Evidence on a rank that waits for a lock."""

from __future__ import annotations

import pytest

from probe_agent.wire import Backtrace, Frame, ThreadStack
from probe_cli.cluster.hang.details import held_rlock


def waiting(locals_: dict[str, str] | None) -> Backtrace:
    frame = Frame("save", "/home/me/train.py", 88, 0, "python", "with self.lock:", locals_)
    return Backtrace((ThreadStack("MainThread", 7, 1, True, True, False, (frame,)),), "recorder", ())


def test_the_one_rlock_of_the_function_that_another_thread_holds_is_named() -> None:
    stacks = waiting(
        {"self": "<Trainer>", "self.lock": "<RLock held by thread keep (er) (9)>", "done": "<lock, locked>"}
    )

    assert held_rlock(stacks) == ("self.lock", 9, "keep (er)")


@pytest.mark.parametrize(
    "locals_",
    [
        None,
        {"lock": "<lock, locked>"},
        {"own": "<RLock held by thread MainThread (7)>"},
        {"a": "<RLock held by thread x (8)>", "b": "<RLock held by thread y (9)>"},
    ],
)
def test_nothing_is_said_of_locks_that_leave_a_doubt(locals_: dict[str, str] | None) -> None:
    assert held_rlock(waiting(locals_)) is None
