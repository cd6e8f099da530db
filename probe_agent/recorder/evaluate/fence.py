"""Fence around running code: another thread can stop that code with an exception, and nothing else.

CPython delivers an asynchronous exception "soon", perhaps after the code has ended. So the thread that runs the code
(for at-step code, the training thread) closes the fence when it leaves, and catches any exception that arrives late.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from time import sleep
from typing import Any

from ..guest.walk import frames_of

__all__ = ["Fence", "Stopped"]

#: Code may swallow the exception (`except:` in a loop), so it is sent up to this many times.
MAX_SENDS = 12


class Stopped(BaseException):
    """Raised inside evaluated code to end it."""


class Fence:
    """A fence around one evaluation; one other thread may call `send`."""

    def __init__(self) -> None:
        self.stopped = False
        #: The last `Stopped` that was caught; its context is the interrupted exception.
        self.caught: Stopped | None = None
        self._ident = 0
        self._accepting = False
        self._sending = False
        self._num_sent = 0

    def run(self, body: Callable[[], None]) -> None:
        """Call `body`, which raises nothing itself. No `Stopped` is pending or raised when this returns."""
        self._run(body, MAX_SENDS)
        if self._num_sent:
            self._quieten()

    def _run(self, body: Callable[[], None], depth: int) -> None:
        """Call `body` inside `depth` levels more.

        One level of `except` can itself be hit while it handles a hit. With one level more than exceptions that can be
        sent, one level gets through `_close` undisturbed.
        """
        try:
            if depth:
                self._run(body, depth - 1)
            else:
                self._ident = get_ident()
                self._accepting = True
                body()
            self._close()
        except Stopped as stopped:
            self.stopped, self.caught = True, stopped
            self._close()

    def _close(self) -> None:
        # May be interrupted anywhere and repeated. No lock: one taken here could stay taken.
        self._accepting = False
        while self._sending:
            sleep(0.0005)
        if self._num_sent:
            _set_async_exception(self._ident, None)

    def _quieten(self) -> None:
        """Have one exception arrive here. Before Python 3.13, taking one back leaves all threads on the interpreter's
        slow way until the next arrives: loops take 5 to 55 % longer, and in 3.11 a thread with a tracer never ends."""
        try:
            _set_async_exception(self._ident, Stopped)
            for _ in range(1000):  # not for ever: there may be no `ctypes`
                pass
        except Stopped:
            return

    def send(self) -> bool:
        """Try to stop the code. Return False if this Python offers no way to."""
        self._sending = True  # first: `_close` clears `_accepting`, then reads this
        try:
            if self._accepting and self._num_sent < MAX_SENDS and not _is_importing(self._ident):
                self._num_sent += 1
                return _set_async_exception(self._ident, Stopped)
            return True
        finally:
            self._sending = False


def _is_importing(ident: int) -> bool:
    """Return whether the thread is inside the import system: stopped there, it could leave a module lock taken."""
    return any(frame.f_code.co_filename.startswith("<frozen importlib") for frame in frames_of(ident))


def _set_async_exception(ident: int, kind: type[BaseException] | None) -> bool:
    try:
        import ctypes
    except ImportError:
        return False  # a Python built without libffi; the caller reports it
    # By subscript: a new function object, not the shared one, whose argtypes the job may have set.
    call: Any = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
    call.argtypes = (ctypes.c_ulong, ctypes.c_void_p)
    call(ident, None if kind is None else id(kind))
    return True
