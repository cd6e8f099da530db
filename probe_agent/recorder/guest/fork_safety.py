"""Cleanup of a forked child, such as a DataLoader worker, right after the fork.

`os.register_at_fork` cannot be undone, so one function is registered per process, once. It calls the watchers
registered at that moment, and stays after detach without any. It runs in the child; a fork costs the job nothing else.
"""

from __future__ import annotations

import os
import sys
from types import FunctionType
from typing import Callable

__all__ = ["forget", "watch"]

_KEY = "_probe_fork_watchers"


def _watchers() -> list[Callable[[], None]]:
    """Return the list of watchers, which outlives the recorder so that a later attach finds it."""
    found = getattr(sys, _KEY, None)
    if found is None:
        found = []
        setattr(sys, _KEY, found)

        # Without globals of the recorder, which it would keep alive for ever.
        os.register_at_fork(
            after_in_child=FunctionType(_after_fork.__code__, {"__builtins__": {}}, "after_fork", (found,))
        )
    return found


def _after_fork(watchers: list[Callable[[], None]]) -> None:
    # Newest first, as in every cleanup; a watcher may register again.
    called = watchers[::-1]
    watchers.clear()
    for watcher in called:
        watcher()


def watch(watcher: Callable[[], None]) -> None:
    """Call `watcher` in every forked child from now on."""
    _watchers().append(watcher)


def forget(watcher: Callable[[], None]) -> None:
    """Undo `watch`."""
    if watcher in _watchers():
        _watchers().remove(watcher)
