"""Exit handler that ends the recorder's thread before the interpreter finalizes.

A thread that still imports or runs Python while the main thread finalizes can crash the process on CPython before
3.13. So the main thread, at exit, notifies the recorder's thread and waits for it: a few ms, at most 5 s. The
recorder's thread calls `watch` first and `hand_over` at its end; the `atexit` handler runs on the main thread.
"""

from __future__ import annotations

import atexit
import os
from _thread import allocate_lock
from collections.abc import Callable
from time import time
from typing import Any

__all__ = ["began_at", "hand_over", "is_ending", "tell", "untell", "watch"]

WAIT_S = 5.0
_pid = os.getpid()
_ended = allocate_lock()
_listeners: list[Callable[[], None]] = []
_began_at = 0.0


def watch() -> None:
    """Register the exit handler; the recorder's thread starts."""
    _ended.acquire()
    atexit.register(_end)


def tell(listener: Callable[[], None]) -> None:
    """Call `listener` on the main thread when the process exits."""
    _listeners.append(listener)


def untell(listener: Callable[[], None]) -> None:
    """Undo `tell`."""
    if listener in _listeners:
        _listeners.remove(listener)


def is_ending() -> bool:
    """Return whether the process is exiting; the target's files then stay for a post-mortem."""
    return _began_at > 0


def began_at() -> float:
    """Return when the exit began, in seconds since 1970."""
    return _began_at


def hand_over() -> list[Any]:
    """Have an exit wait for a lock that refers to nothing of the recorder. Return the locks to release at the end, the
    first of which is registered with `atexit`."""
    if is_ending():
        return [_ended]
    leaving = allocate_lock()
    leaving.acquire()
    atexit.register(leaving.acquire, True, WAIT_S)
    atexit.unregister(_end)
    return [leaving, _ended]  # an exit that began in between waits for both


def _end() -> None:
    global _began_at
    if os.getpid() != _pid:
        return  # a forked child does not have the recorder's thread
    _began_at = time()
    for listener in list(_listeners):
        listener()
    _ended.acquire(timeout=WAIT_S)
