"""Identity of the main thread, and repair of `threading` after a first import on a thread of the recorder.

Before Python 3.13 `threading` takes the thread that imports it first for the main thread; evaluated code may be that
first import. Runs on threads of the recorder: a walk over the threads' frames.
"""

from __future__ import annotations

import _thread
import os
import sys
from _thread import allocate_lock
from typing import Any

from .walk import frames_of, idents

__all__ = ["main_ident", "repair_threading"]


def main_ident() -> int | None:
    """Return the main thread's identifier, None if it is unknown."""
    ask: Any = getattr(_thread, "_get_main_thread_ident", None)  # Python 3.13
    if ask is not None:
        return int(ask())
    ident = _ident_by_frames()
    if ident is None and "threading" in sys.modules:
        ident = getattr(sys.modules["threading"].main_thread(), "ident", None)
        if "greenlet" in sys.modules and ident not in (running := idents()):
            ident = running[-1]  # with gevent the other one is a greenlet's
    return ident


def _ident_by_frames() -> int | None:
    """Return the thread that runs the body of the script."""
    script = vars(sys.modules["__main__"])
    return next((ident for ident in reversed(idents()) if _runs(ident, script)), None)


def _runs(ident: int, script: dict[str, Any]) -> bool:
    return any(one.f_globals is script and one.f_code.co_name == "<module>" for one in frames_of(ident))


def repair_threading() -> bool:
    """Make `threading.main_thread()` correct again. Return True if it was wrong."""
    threading: Any = sys.modules.get("threading")
    main: Any = getattr(threading, "_main_thread", None)
    right = main_ident() if main is not None else None
    # Python 3.13 knows the identifier, but takes the native one of the importing thread.
    lied = main is not None and (main.ident != right or main.native_id == _thread.get_native_id())
    if right is None or right == _thread.get_ident() or not lied:
        return False
    threading._active.pop(main.ident, None)
    main._ident = right
    main._native_id = os.getpid()
    threading._active[right] = main
    lock = getattr(main, "_tstate_lock", None)  # until Python 3.12: released when the thread ends
    if lock is not None:
        # The present lock is released when the recorder's thread ends; the shutdown asserts that it is held.
        fresh = allocate_lock()
        fresh.acquire()
        main._tstate_lock = fresh
        threading._shutdown_locks.discard(lock)
        threading._shutdown_locks.add(fresh)
    return True
