"""Makes a forked child (a DataLoader worker, say) clean at once.

`os.register_at_fork` cannot be taken back, so one function is registered a process, ever; it calls whoever
watches at that moment. It stays after detach, with nobody watching.
"""

from __future__ import annotations

import os
import sys
from types import FunctionType
from typing import Callable

__all__ = ["forget", "watch"]

_KEY = "_probe_fork_watchers"


def _watchers() -> list[Callable[[], None]]:
    """The list that outlives us: a later attach finds it again."""
    found = getattr(sys, _KEY, None)
    if found is None:
        found = []
        setattr(sys, _KEY, found)

        # With no globals of ours, which it would keep: it stays for ever.
        os.register_at_fork(
            after_in_child=FunctionType(_after_fork.__code__, {"__builtins__": {}}, "after_fork", (found,))
        )
    return found


def _after_fork(watchers: list[Callable[[], None]]) -> None:
    # Newest first, as in every undoing; a watcher may watch anew.
    called = watchers[::-1]
    watchers.clear()
    for watcher in called:
        watcher()


def watch(watcher: Callable[[], None]) -> None:
    """Have `watcher` called in every forked child from now on."""
    _watchers().append(watcher)


def forget(watcher: Callable[[], None]) -> None:
    """The opposite of `watch`."""
    if watcher in _watchers():
        _watchers().remove(watcher)
