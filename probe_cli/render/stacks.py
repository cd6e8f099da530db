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

from probe_agent.wire import Backtrace, Frame, TaskStack, ThreadStack
from probe_cli.cluster.fanout import Answers
from probe_cli.cluster.stacks import Branch
from probe_cli.messages import remark
from probe_cli.text import num_ranks

from .show import heading, who_answered
from .terminal import bold, dim, visible, wants_colour

__all__ = ["branch_json", "show_stacks", "stack_lines", "tree_lines"]

#: Names of functions stand in a column of at most this width.
NAME_WIDTH = 32
#: Names in C++ hold the types of all arguments; --json has them whole.
MAX_NATIVE_NAME = 100
#: A cell as the recorder names it, and its file in a stack that was read from outside, where its number is not known.
_CELL = re.compile(r"^In \[\d+\]$|/ipykernel_\d+/(\d+)\.py$")


def stack_lines(backtrace: Backtrace, colour: bool) -> Iterator[str]:
    """One block a thread, then one a task and one a thread of a worker."""
    blocks = [_thread_lines(thread, _heading(thread), colour) for thread in backtrace.threads]
    for task in backtrace.tasks:
        blocks.append(_frame_lines(task.frames, _task_heading(task), colour))
    for worker in backtrace.workers:
        for thread in worker.threads:
            blocks.append(_thread_lines(thread, f"worker {worker.pid} ({worker.kind}): {_heading(thread)}", colour))
    for at, block in enumerate(blocks):
        if at:
            yield ""
        yield from block


def _thread_lines(thread: ThreadStack, heading: str, colour: bool) -> Iterator[str]:
    frames, folded = _without_kernel(thread.frames)
    yield from _frame_lines(frames, heading, colour)
    if not thread.frames:
        yield thread.no_frame
    if folded:
        idle = "" if frames else "no cell is running: "
        yield dim(f"… {idle}{folded} frames of IPython (--json has them)", colour)


def _frame_lines(frames: Sequence[Frame], heading: str, colour: bool) -> Iterator[str]:
    yield bold(heading, colour)
    # Names in one column: func is what the eye runs down.
    width = min(NAME_WIDTH, max((len(_name(frame)) for frame in frames), default=0))
    for frame in frames:
        yield f"#{frame.depth:<3}{bold(visible(_name(frame)).ljust(width), colour)}  {_where(frame)}".rstrip()
        if frame.source:
            yield dim("      " + visible(frame.source.strip()), colour)
        for name, text in (frame.locals or {}).items():
            yield f"      {visible(name)} = {visible(text)}"


def _name(frame: Frame) -> str:
    """The function; of C++ shortened: it can fill a screen."""
    if frame.frame_type != "native" or len(frame.func) <= MAX_NATIVE_NAME:
        return frame.func
    return frame.func[: MAX_NATIVE_NAME - 1] + "…"


def _where(frame: Frame) -> str:
    if cell := _CELL.search(frame.file):
        name = f"notebook cell {cell[1]}" if cell[1] else frame.file
        return f"{name}, line {frame.lineno}"
    line = f":{frame.lineno}" if frame.lineno else ""
    return f"{visible(frame.file)}{line}" if frame.file else ""


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


def _task_heading(task: TaskStack) -> str:
    awaits = f", awaits {visible(task.awaits)}" if task.awaits else ""
    return f"{task.kind} {visible(task.name)}{', running' if task.is_running else awaits}"


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
        yield f"{body}{visible(_name(frame)).ljust(width)}  {_where(frame)}".rstrip()
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
