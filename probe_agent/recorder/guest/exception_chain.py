"""Chain of an exception as plain values: type, message, place and frames of each link, without a local variable.

Runs on the thread whose exception was not caught. Nothing here keeps the exception, its frames, or what they hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

__all__ = ["Link", "chain", "message_of"]

MAX_LINKS = 8
#: Of a longer traceback, the outermost and the innermost frames are kept.
MAX_OUTER, MAX_INNER = 16, 32
MAX_MESSAGE = 2_000
MAX_NAME = 300


class Link(NamedTuple):
    """One exception of a chain."""

    #: "uncaught", "cause" (raise … from), or "context" (raised while that one was handled).
    relation: str
    type: str
    message: str
    #: Where it was raised; None without a traceback.
    func: str | None
    file: str | None
    lineno: int | None
    #: Its frames as in Python's own traceback, outermost first, without the source lines.
    frames: str


def chain(error: BaseException) -> Iterator[Link]:
    """Yield `error`, then what Python would print above it: its cause, or the exception that was being handled."""
    seen: set[int] = set()
    relation, link = "uncaught", error
    while len(seen) < MAX_LINKS:
        seen.add(id(link))
        yield _link(relation, link)
        cause, context = link.__cause__, link.__context__
        if cause is not None:
            relation, link = "cause", cause
        elif context is not None and not link.__suppress_context__:
            relation, link = "context", context
        else:
            return
        if id(link) in seen:
            return


def message_of(error: BaseException) -> str:
    """Return `str(error)`, cut to a bounded length; the job's own class may raise here."""
    try:
        text = str(error)
    except BaseException as failure:
        text = f"<{type(failure).__name__} in __str__>"
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


def _link(relation: str, error: BaseException) -> Link:
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    outer: list[str] = []
    inner: deque[str] = deque(maxlen=MAX_INNER)
    number = 0
    func = file = lineno = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        func, file, lineno = code.co_name[:MAX_NAME], code.co_filename[:MAX_NAME], trace.tb_lineno
        line = f'  File "{file}", line {lineno}, in {func}'
        if number < MAX_OUTER:
            outer.append(line)
        else:
            inner.append(line)
        number += 1
        trace = trace.tb_next
    left_out = number - len(outer) - len(inner)
    between = [f"  [{left_out} more frames]"] if left_out else []
    frames = "\n".join([*outer, *between, *inner])
    return Link(relation, name[:MAX_NAME], message_of(error), func, file, lineno, frames)
