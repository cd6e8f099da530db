"""The same question again and again: in place on a terminal, one answer after the other in a pipe.

Runs in the CLI on its main thread. Ctrl-C ends it with 130, whether it waits or asks.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import time
from collections.abc import Iterator

from probe_agent.errors import NoAnswer
from probe_agent.wire import QueryRequest

from .answering import Across, ask
from .render.terminal import dim, wants_colour
from .session import Session, remark

__all__ = ["watch"]

#: To the upper left corner; and from a line's end, or from here on, nothing.
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def watch(
    session: Session, request: QueryRequest, across: Across, format_: str, interval_s: float, count: int | None
) -> int:
    """Ask `count` times, or until Ctrl-C; gives the exit code of the last answer."""
    code = num_asked = 0
    in_place = sys.stdout.isatty()
    while True:
        began = time.monotonic()
        with _screen(_heading(request, interval_s)) if in_place else contextlib.nullcontext():
            if format_ == "table" and not in_place:
                print(("\n" if num_asked else "") + time.strftime("%H:%M:%S"), flush=True)
            try:
                code = ask(session, request, across, format_, None)
            except NoAnswer as error:
                if not num_asked:
                    raise
                code = error.exit_code
                remark(f"probe: {error.message}" + (f"\ntry: {error.hint}" if error.hint else ""))
        num_asked += 1
        if num_asked == count:
            return code
        time.sleep(max(0.0, began + interval_s - time.monotonic()))


def _heading(request: QueryRequest, interval_s: float) -> str:
    words = " ".join(request.sql.split())
    return f"{time.strftime('%H:%M:%S')}, every {interval_s:g} s: {words}"


@contextlib.contextmanager
def _screen(heading: str) -> Iterator[None]:
    """What is printed meanwhile, remarks included, takes the place of what the terminal shows, as far as it fits."""
    colour = wants_colour(sys.stdout)
    size = shutil.get_terminal_size()
    shown = _Terminal()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        yield
    lines = [dim(heading[: size.columns - 1], colour), *shown.getvalue().splitlines()]
    if len(lines) > size.lines - 1:
        left_out = len(lines) - (size.lines - 2)
        lines = [*lines[: size.lines - 2], dim(f"{left_out} more lines: LIMIT, or a larger terminal", colour)]
    sys.stdout.write(_HOME + "".join(f"{line}{_REST_OF_LINE}\n" for line in lines) + _REST_OF_SCREEN)
    sys.stdout.flush()


class _Terminal(io.StringIO):
    """Text on its way to the terminal: whoever asks is told so, and fits into it."""

    def isatty(self) -> bool:
        return True
