"""Folded stacks as text, and which of their code is the job's own.

A line of the folded text is a stack, outermost frame first, and how many samples were alike.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from probe_agent.wire import Frame

__all__ = ["FRAME", "job_frame", "job_function", "job_lines", "short_place", "stacks"]

FRAME = re.compile(r"(?P<func>.*) \((?P<file>.*?)(?::(?P<line>\d+))?\)$")
#: Code that the job has installed, not written; and ours.
_NOT_THE_JOBS = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+\w*/|^<frozen|^<probe>|/probe_agent/recorder/|^$")
#: The file of code that was made as text; of all the code of `python -c`, too.
_NO_FILE = "<string>"
_PACKAGE = re.compile(r"/(site|dist)-packages/(?P<name>[^/]+)")
#: `Module._wrapped_call_impl`, `_exception_logger.<locals>.wrapper`; a name such as `__next__` is none.
_WRAPPER = re.compile(r"<locals>|(^|\.)_(?!_)\w*$")
#: py-spy's name for the thread that runs the script.
_SCRIPTS_THREAD = "MainThread"


def stacks(folded: str) -> Iterator[tuple[list[str], int]]:
    """The frames of each stack, and how many samples it has."""
    for line in folded.splitlines():
        stack, _, count = line.rpartition(" ")
        if count.isdigit():
            yield stack.split(";"), int(count)


def job_function(frame: str) -> tuple[str, str] | None:
    """Name and file of a frame that is in the job's own code."""
    found = FRAME.match(frame)
    if not found or found["line"] is None or _NOT_THE_JOBS.search(found["file"]):
        return None
    return found["func"], short_place(found["file"], None)


def job_lines(folded: str) -> Counter[tuple[str, str]]:
    """Samples of the thread that runs the script by the job's own innermost line, `train.py:88`, and what it calls of a
    package, `torch.save`; where it calls none, or a wrapper that tells nothing, the job's function."""
    found: Counter[tuple[str, str]] = Counter()
    for frames, count in stacks(folded):
        own = [at for at, frame in enumerate(frames) if job_function(frame) is not None]
        if not own or not frames[0].endswith(_SCRIPTS_THREAD):
            continue
        frame = FRAME.match(frames[own[-1]])
        called = FRAME.match(frames[own[-1] + 1]) if own[-1] + 1 < len(frames) else None
        assert frame is not None  # it is one of the job's functions
        what = _in_package(called["func"], called["file"]) if called else None
        found[what or frame["func"], f"{os.path.basename(frame['file'])}:{frame['line']}"] += count
    return found


def job_frame(frames: Iterable[Frame]) -> str | None:
    """`evaluate (train.py:88)`: of a stack, innermost frame first, the first one of the job's own code, with a file if
    there is one: code without may be what the standard library makes, as for `multiprocessing.Value`."""
    own = [frame for frame in frames if frame.lineno and not _NOT_THE_JOBS.search(frame.file)]
    for frame in [*(one for one in own if one.file != _NO_FILE), *own]:
        return f"{frame.func.rpartition('.')[2]} ({os.path.basename(frame.file)}:{frame.lineno})"
    return None


def short_place(file: str, line: str | None) -> str:
    """The last two parts of a path, with the line if there is one."""
    short = os.sep.join(file.split(os.sep)[-2:])
    return short if line is None else f"{short}:{line}"


def _in_package(func: str, file: str) -> str | None:
    """`torch.save` of a function of a package that is installed; None of a wrapper around what the job called."""
    package = _PACKAGE.search(file)
    return f"{package['name'].removesuffix('.py')}.{func}" if package and not _WRAPPER.search(func) else None
