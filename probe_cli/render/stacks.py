"""Stacks as people read them: innermost frame first, its source line beneath."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from probe_agent.wire import Backtrace, Frame, ThreadStack

from .terminal import bold, dim, visible

__all__ = ["stack_json", "stack_lines"]

#: A cell as the recorder names it, and its file as one sees it who reads the stack from outside.
_CELL = re.compile(r"^In \[\d+\]$|/ipykernel_\d+/\d+\.py$")


def stack_lines(backtrace: Backtrace, colour: bool) -> Iterator[str]:
    """One block a thread."""
    for at, thread in enumerate(backtrace.threads):
        if at:
            yield ""
        yield bold(_heading(thread), colour)
        if not thread.frames:
            yield thread.no_frame
        frames, folded = _without_kernel(thread.frames)
        # Names in one column: func is what the eye runs down.
        width = max((len(frame.func) for frame in frames), default=0)
        for frame in frames:
            line = f"#{frame.depth:<3}{bold(visible(frame.func).ljust(min(width, 32)), colour)}  {_where(frame)}"
            yield line.rstrip()
            if frame.source:
                yield dim("      " + visible(frame.source.strip()), colour)
        if folded:
            idle = "" if frames else "no cell is running: "
            yield dim(f"… {idle}{folded} frames of IPython (--json has them)", colour)


def _where(frame: Frame) -> str:
    if frame.file.startswith("In ["):
        return f"{frame.file}, line {frame.lineno}"
    return f"{visible(frame.file)}:{frame.lineno}" if frame.file else ""


def _without_kernel(frames: Sequence[Frame]) -> tuple[Sequence[Frame], int]:
    """The frames of a notebook's cell and what it has called, and how many are those of the kernel that runs it."""
    cells = [at for at, frame in enumerate(frames) if _CELL.search(frame.file)]
    if not cells and not any("/ipykernel/kernelapp.py" in frame.file for frame in frames):
        return frames, 0
    kept = cells[-1] + 1 if cells else 0
    return frames[:kept], len(frames) - kept


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
