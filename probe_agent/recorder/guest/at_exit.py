"""Ends our thread before the interpreter is taken apart around it.

A thread that still imports or runs Python while the main thread finalizes can crash the process on CPython before
3.13. So the main thread, once it is at its end, tells ours and waits for it: some milliseconds, five seconds at most.
`watch` and `over` are called by our thread, first and last; what `atexit` calls runs on the main thread.
"""

from __future__ import annotations

import atexit
import os
from _thread import allocate_lock
from collections.abc import Callable
from time import time

__all__ = ["began_at", "is_ending", "over", "tell", "untell", "watch"]

WAIT_S = 5.0
_pid = os.getpid()
_ended = allocate_lock()
_listeners: list[Callable[[], None]] = []
_began_at = 0.0


def watch() -> None:
    """Our thread runs from now on."""
    _ended.acquire()
    atexit.register(_end)


def tell(listener: Callable[[], None]) -> None:
    """Have `listener` called, on the main thread, when the process comes to its end."""
    _listeners.append(listener)


def untell(listener: Callable[[], None]) -> None:
    """The opposite of `tell`."""
    if listener in _listeners:
        _listeners.remove(listener)


def is_ending() -> bool:
    """Whether the process has come to its end: the files stay, for whoever wants to know what happened."""
    return _began_at > 0


def began_at() -> float:
    """When it came to its end, in seconds since 1970."""
    return _began_at


def over() -> None:
    """Our thread runs no Python any more."""
    if not is_ending():
        atexit.unregister(_end)
    _ended.release()


def _end() -> None:
    global _began_at
    if os.getpid() != _pid:
        return  # a forked child does not have our thread
    _began_at = time()
    for listener in list(_listeners):
        listener()
    _ended.acquire(timeout=WAIT_S)
