"""A wait that an attach interrupts ends as it would have: with its result, after its full time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.waiting import until

from probe_agent import inject

from .conftest import LEFT_NOTHING, Target, detach, installed_pythons, is_asleep

#: What each wait of situations.py returns.
WAITS = {
    "sleep": None,
    "lock": False,
    "recv": "word" * 9,
    "recv_timeout": "timed out",
    "read": "word" * 9,
    "waitpid": 3,
    "select": [0, 0, 0],
    "poll": [],
    "epoll": [],
    "epoll_in_c": 1,
    "nanosleep_in_c": 0,
}
SECONDS = 4.0


@pytest.mark.situation(
    "its main thread waits: sleep, lock, recv, read, waitpid, select, poll, epoll, futex with a timeout",
    "attached at once; the wait has its own result and its full length",
)
def test_every_wait_returns_its_own_result_after_its_full_time(start: Callable[..., Target]) -> None:
    targets: dict[str, Target] = {}
    ways = {}
    for name in WAITS:
        target = targets[name] = start(name, seconds=SECONDS)
        until(lambda target=target: is_asleep(target.pid))
        attached = inject.attach(target.pid)
        ways[name] = attached.how
        detach(attached)
    ends = {name: target.finish() for name, target in targets.items()}

    assert {name: end["result"] for name, end in ends.items()} == WAITS
    assert {name: end["left"] for name, end in ends.items()} == dict.fromkeys(WAITS, LEFT_NOTHING)
    assert set(ways.values()) == {"quiet thread"}
    for name, end in ends.items():
        # A child that writes after SECONDS needs time to begin, too.
        assert SECONDS - 0.01 <= end["took"] < SECONDS + 2.5, name
    assert ends["nanosleep_in_c"]["took"] < SECONDS + 0.3
    assert ends["poll"]["took"] < SECONDS + 0.3


@pytest.mark.busy_machine("a sleep of 4 s ends up to 1 s late there, which looks as if the attach had prolonged it")
@pytest.mark.situation("CPython 3.9 to 3.13, static and shared, at work and asleep", "works")
def test_attaches_to_every_installed_python_at_work_and_asleep(start: Callable[..., Target]) -> None:
    asleep, ends = {}, {}
    for python in installed_pythons():
        asleep[python] = target = start("sleep", python=python, seconds=SECONDS)
        until(lambda target=target: is_asleep(target.pid))
        assert attached_twice(target) == ["quiet thread"] * 2, python
    for python in installed_pythons():
        at_work = start("spin", python=python)
        assert attached_twice(at_work) == ["pending call"] * 2, python
        ends[python] = at_work.finish()

    assert {python: end["left"] for python, end in ends.items()} == dict.fromkeys(ends, LEFT_NOTHING)
    for python, target in asleep.items():
        slept = target.finish()
        assert slept["left"] == LEFT_NOTHING, python
        assert SECONDS - 0.01 < slept["took"] < SECONDS + 0.5, python


def attached_twice(target: Target) -> list[str]:
    """Attach and detach twice; return how each attach was done."""
    ways = []
    for _ in range(2):
        attached = inject.attach(target.pid)
        ways.append(attached.how)
        detach(attached)
    return ways
