"""Threads of the recorder inside the target; they take no signal meant for the job.

They are started with `_thread`, because a first import of `threading` on one of them would make
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

__all__ = ["block_signals", "enter", "forget_dummy_thread", "idents", "in_child", "leave", "start", "wait_for_end"]

#: Raised by a fault of the thread itself: if blocked, the kernel would kill the job before faulthandler can write.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}

_BLOCKED = frozenset(map(int, signal.valid_signals() - _FAULTS))

_running: set[int] = set()


def idents() -> frozenset[int]:
    """Return the threads of the recorder that run now."""
    return frozenset(_running)


def start(function: Callable[[], object]) -> None:
    """Run `function`, which must not raise, on a new thread. Raises RuntimeError if the process cannot start one."""
    start_new_thread(_run, (function,))


def _run(function: Callable[[], object]) -> None:
    enter()
    try:
        function()
    finally:
        leave()


def enter() -> None:
    """Make the calling thread one of the recorder's."""
    block_signals()
    _running.add(get_ident())


def block_signals() -> None:
    """Let the calling thread take no signal but those of its own faults, whatever it has inherited."""
    # Not through `signal`, which converts the old mask to enum members: that took 0.1 ms.
    _signal.pthread_sigmask(_signal.SIG_SETMASK, _BLOCKED)


def leave() -> None:
    """End the calling thread's time as one of the recorder's."""
    forget_dummy_thread()
    _running.discard(get_ident())


def forget_dummy_thread() -> None:
    """Remove the object that `threading.current_thread()` may have made for the calling thread of the recorder."""
    ident = get_ident()
    threading = sys.modules.get("threading")
    active: Any = getattr(threading, "_active", None)
    if active is not None and isinstance(active.get(ident), threading._DummyThread):  # type: ignore[union-attr]
        active.pop(ident, None)


def wait_for_end(timeout_s: float) -> int:
    """Wait until none of the threads runs, and return how many still do."""
    deadline = monotonic() + timeout_s
    while _running and monotonic() < deadline:
        sleep(0.001)
    return len(_running)


def in_child() -> None:
    """Reset in a forked child, which has no thread of the recorder; a child forked by eval code takes signals again."""
    if get_ident() in _running:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    _running.clear()
