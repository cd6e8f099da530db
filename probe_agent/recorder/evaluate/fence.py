"""Stops running code by an exception that can land in that code and nowhere else.

The code runs on one thread (at-step code on the training thread), the wish to stop comes from another. CPython's
asynchronous exception is delivered "soon", perhaps after the code has ended; so the thread that runs the code
closes the fence when it leaves, and whatever arrives on the way out is caught on the way out.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from time import sleep
from typing import Any

__all__ = ["Fence", "Stopped"]

#: Code may swallow the exception (`except:` in a loop); so often is it sent.
MAX_SENDS = 12


class Stopped(BaseException):
    """Raised inside eval code to end it."""


class Fence:
    """Runs one piece of code. `send` is for one other thread."""

    def __init__(self) -> None:
        self.stopped = False
        #: The last exception of ours that was caught; what it interrupted is its context.
        self.caught: Stopped | None = None
        self._ident = 0
        self._accepting = False
        self._sending = False
        self._num_sent = 0

    def run(self, body: Callable[[], None], depth: int = MAX_SENDS) -> None:
        """Call `body`, which raises nothing of its own. No `Stopped` is pending or raised when this returns.

        One level of `except` can itself be hit while it handles the previous hit; with one level more than
        exceptions that can be sent, one of them gets through `_close` undisturbed.
        """
        try:
            if depth:
                self.run(body, depth - 1)
            else:
                self._ident = get_ident()
                self._accepting = True
                body()
            self._close()
        except Stopped as stopped:
            self.stopped, self.caught = True, stopped
            self._close()

    def _close(self) -> None:
        # May be interrupted anywhere and done again. Without a lock: one taken here could stay taken.
        self._accepting = False
        while self._sending:
            sleep(0.0005)
        if self._num_sent:
            _set_async_exception(self._ident, None)

    def send(self) -> bool:
        """Try to stop the code. False when this Python offers no way to."""
        self._sending = True  # before looking: `_close` says no first and looks at this second
        try:
            if self._accepting and self._num_sent < MAX_SENDS and not _is_importing(self._ident):
                self._num_sent += 1
                return _set_async_exception(self._ident, Stopped)
            return True
        finally:
            self._sending = False


def _is_importing(ident: int) -> bool:
    """Whether the thread is inside the import system: stopped there, it could leave a module lock taken."""
    frame = sys._current_frames().get(ident)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _set_async_exception(ident: int, kind: type[BaseException] | None) -> bool:
    try:
        import ctypes
    except ImportError:
        return False  # a Python built without libffi; the caller says so
    # By subscript: a function object of our own, not the one whose argtypes the job may have set.
    call: Any = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
    call.argtypes = (ctypes.c_ulong, ctypes.c_void_p)
    call(ident, None if kind is None else id(kind))
    return True
