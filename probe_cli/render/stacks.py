"""Stacks as people read them.

Of one target, innermost frame first, its source line beneath. Of many ranks, folded into a tree: outermost frame first,
a branch where ranks part.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from probe_agent.wire import Backtrace, Frame, ThreadStack
from probe_cli.cluster.fanout import Answers
from probe_cli.cluster.stacks import Branch
from probe_cli.messages import remark
from probe_cli.text import num_ranks

from .show import heading, who_answered
from .terminal import bold, dim, visible, wants_colour

__all__ = ["branch_json", "show_stacks", "stack_lines", "tree_lines"]

#: Names of functions stand in a column of at most this width.
NAME_WIDTH = 32
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
            line = (
                f"#{frame.depth:<3}{bold(visible(frame.func).ljust(min(width, NAME_WIDTH)), colour)}  {_where(frame)}"
            )
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
    return f"thread {name} ({', '.join([*roles, number])})" + (f", {thread.kernel}" if thread.kernel else "")


def show_stacks(answers: Answers[Backtrace], *, as_json: bool) -> None:
    """Print the stacks of each endpoint, and the notes about them. The JSON of one endpoint is as the server gave it;
    of several it is an envelope."""
    if as_json:
        whole: object = {
            "rows": [{"endpoint": str(endpoint), **asdict(taken)} for endpoint, taken in answers.answered],
            **who_answered(answers),
        }
        print(
            json.dumps(whole if answers.num_asked > 1 else asdict(answers.answered[0][1]), indent=1, ensure_ascii=False)
        )
        return
    for at, (endpoint, taken) in enumerate(answers.answered):
        if answers.num_asked > 1:
            heading(str(endpoint), first=at == 0)
        sys.stdout.writelines(line + "\n" for line in stack_lines(taken, wants_colour(sys.stdout)))
        sys.stdout.flush()
        for note in taken.notes:
            remark(note)


def tree_lines(branches: Sequence[Branch], colour: bool) -> Iterator[str]:
    """One tree a thread."""
    for at, branch in enumerate(branches):
        if at:
            yield ""
        yield from _branch_lines(branch, "", "", colour)


def _branch_lines(branch: Branch, first: str, prefix: str, colour: bool) -> Iterator[str]:
    name = f"  thread {visible(branch.thread)}" if branch.thread else ""
    here = "" if branch.frames or not first else "  (goes no deeper)"
    yield f"{first}{bold(num_ranks(branch.ranks) + name, colour)}{here}"
    body = prefix + ("│  " if branch.branches else "   ")
    width = min(NAME_WIDTH, max((len(frame.func) for frame in branch.frames), default=0))
    for frame in branch.frames:
        where = f"{visible(frame.file)}:{frame.lineno}" if frame.file else ""
        yield f"{body}{visible(frame.func).ljust(width)}  {where}".rstrip()
    if branch.frames and (source := branch.frames[-1].source):  # where they are, or the last they have in common
        yield body + dim("    " + visible(source.strip()), colour)
    for at, deeper in enumerate(branch.branches, 1):
        last = at == len(branch.branches)
        yield from _branch_lines(
            deeper, prefix + ("└─ " if last else "├─ "), prefix + ("   " if last else "│  "), colour
        )


def branch_json(branch: Branch) -> dict[str, object]:
    """The same for programs."""
    return {
        "ranks": list(branch.ranks),
        "thread": branch.thread or None,
        "frames": [
            {"func": frame.func, "file": frame.file, "lineno": frame.lineno, "source": frame.source}
            for frame in branch.frames
        ],
        "branches": [branch_json(deeper) for deeper in branch.branches],
    }
