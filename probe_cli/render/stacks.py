"""Stacks as people read them: innermost frame first, its source line beneath."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from probe_agent.wire import Backtrace, ThreadStack

from .terminal import bold, dim, visible

__all__ = ["stack_json", "stack_lines"]


def stack_lines(backtrace: Backtrace, colour: bool) -> Iterator[str]:
    """One block a thread."""
    for at, thread in enumerate(backtrace.threads):
        if at:
            yield ""
        yield bold(_heading(thread), colour)
        if not thread.frames:
            yield thread.no_frame
        # Names in one column: func is what the eye runs down.
        width = max((len(frame.func) for frame in thread.frames), default=0)
        for frame in thread.frames:
            where = f"{visible(frame.file)}:{frame.lineno}" if frame.file else ""
            yield f"#{frame.depth:<3}{bold(visible(frame.func).ljust(min(width, 32)), colour)}  {where}".rstrip()
            if frame.source:
                yield dim("      " + visible(frame.source.strip()), colour)


def _heading(thread: ThreadStack) -> str:
    name = visible(thread.thread or "(unnamed)")
    roles = [
        role
        for role, is_so in (
            ("main", thread.is_main),
            ("training", thread.is_training),
            ("Probe's own", thread.is_probe),
            ("holds the GIL", thread.holds_gil),
        )
        if is_so
    ]
    number = f"tid {thread.tid}" if thread.tid is not None else f"ident {thread.ident}"
    return f"thread {name} ({', '.join([*roles, number])})"


def stack_json(answered: Sequence[tuple[object, Backtrace]], *, as_list: bool) -> str:
    """The answers as the server gave them, each with its endpoint when there are several."""
    if as_list:
        return json.dumps(
            [{"endpoint": str(endpoint), **asdict(backtrace)} for endpoint, backtrace in answered],
            indent=1,
            ensure_ascii=False,
        )
    return json.dumps(asdict(answered[0][1]), indent=1, ensure_ascii=False)
