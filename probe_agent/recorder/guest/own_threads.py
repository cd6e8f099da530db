"""Threads of ours inside the target: none is the job's, none takes a signal meant for the job.

Started with `_thread`, because a first import of `threading` on a thread of ours would make
`threading.main_thread()` lie. Costs the training thread nothing; a thread takes about 0.1 ms to start.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` is made of; no stubs
import signal
import sys
from _thread import get_ident, start_new_thread
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

__all__ = ["enter", "forget_stand_in", "idents", "in_child", "leave", "start", "wait_for_end"]

#: Raised by a fault of the very thread: blocked, the kernel would kill the job before faulthandler can speak.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}

_BLOCKED = frozenset(map(int, signal.valid_signals() - _FAULTS))

_running: set[int] = set()


def idents() -> frozenset[int]:
    """The threads of ours that run now."""
    return frozenset(_running)


def start(function: Callable[[], object]) -> None:
    """Run `function`, which must not raise, on a new thread of ours. Raises RuntimeError when there can be none."""
    start_new_thread(_run, (function,))


def _run(function: Callable[[], object]) -> None:
    enter()
    try:
        function()
    finally:
        leave()


def enter() -> None:
    """The calling thread is ours from now on."""
    # Not by way of `signal`, which turns the old mask into enum members: that took 0.1 ms.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _BLOCKED)
    _running.add(get_ident())


def leave() -> None:
    """The calling thread ends."""
    forget_stand_in()
    _running.discard(get_ident())


def forget_stand_in() -> None:
    """Forget the object that `threading.current_thread()` may have made for the calling thread, which is ours."""
    ident = get_ident()
    threading = sys.modules.get("threading")
    active: Any = getattr(threading, "_active", None)
    if active is not None and isinstance(active.get(ident), threading._DummyThread):  # type: ignore[union-attr]
        active.pop(ident, None)


def wait_for_end(timeout_s: float) -> int:
    """Wait until none of them runs; how many still do."""
    deadline = monotonic() + timeout_s
    while _running and monotonic() < deadline:
        sleep(0.001)
    return len(_running)


def in_child() -> None:
    """After a fork, in the child: no thread of ours is left; a child that eval code made takes signals again."""
    if get_ident() in _running:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    _running.clear()
