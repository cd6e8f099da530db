"""Progress of what takes long: a line each on stderr while it lasts, for a person at a terminal.

Nothing is shown in a pipe, with --quiet, or before half a second has passed, and the lines are removed at the end.
stdout is never touched, and remarks on stderr stand above the lines. Work inside other work has a line of its own.
Costs a short command two locks and a timer.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .work import Work

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["Work", "progress", "silence"]

DELAY_S = 0.5


class _Display:
    """All work under way, the outermost first, and the thread that draws it."""

    def __init__(self) -> None:
        self.is_silent = False
        self._lock = threading.Lock()
        self._works: list[Work] = []
        self._timer: threading.Timer | None = None
        self._live: Live | None = None

    def begin(self, work: Work) -> None:
        with self._lock:
            self._works.append(work)
            if len(self._works) == 1:
                self._timer = threading.Timer(DELAY_S, self._draw)
                self._timer.daemon = True
                self._timer.start()

    def end(self, work: Work) -> None:
        with self._lock:
            self._works.remove(work)
            if self._works:
                return
            live, self._live = self._live, None
            if self._timer is not None:
                self._timer.cancel()
        if live is not None:
            live.stop()

    def _draw(self) -> None:
        from .drawing import drawn  # a door: rich, for what takes longer than to load it

        with self._lock:
            if self._works and self._live is None:
                self._live = drawn(lambda: list(self._works))


_display = _Display()


def silence() -> None:
    """Show nothing from now on: --quiet."""
    _display.is_silent = True


@contextmanager
def progress(text: str, total: int | None = None) -> Iterator[Work]:
    """Show that `text` is being done, and how much of it. Without a text nothing is shown: the work itself prints."""
    work = Work(text, total)
    # What stands in for stderr (`watch`, a notebook) draws for itself.
    stderr = sys.stderr
    if not text or _display.is_silent or stderr is not sys.__stderr__ or not (stderr and stderr.isatty()):
        yield work
        return
    _display.begin(work)
    try:
        yield work
    finally:
        _display.end(work)
