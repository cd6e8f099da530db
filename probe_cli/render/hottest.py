"""Folded stacks as short tables: the functions of the job, and the lines, that most samples were taken in.

A line of the folded text is a stack, outermost first, and how many samples were alike.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from probe_agent.wire import Frame

from .sheet import Sheet

__all__ = ["by_function", "hottest", "job_frame", "job_lines"]

#: Code that the job has installed, not written; and ours.
_NOT_THE_JOBS = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+\w*/|^<frozen|^<probe>|/probe_agent/recorder/|^$")
_PACKAGE = re.compile(r"/(site|dist)-packages/(?P<name>[^/]+)")
#: How py-spy calls the thread that runs the script.
_SCRIPTS_THREAD = "MainThread"
NOBODYS = "(no function of the job)"
_FRAME = re.compile(r"(?P<func>.*) \((?P<file>.*?)(?::(?P<line>\d+))?\)$")


def by_function(folded: str, rate: int, limit: int) -> Sheet:
    """The job's own functions, in seconds: `own` is the time in them and in what libraries do for them, `total` has the
    other functions of the job that they call as well."""
    own: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    num_samples = 0
    for frames, count in _stacks(folded):
        functions = [key for frame in frames if (key := _function(frame)) is not None] or [(NOBODYS, "")]
        num_samples += count
        own[functions[-1]] += count
        for key in set(functions):
            total[key] += count
    rows = [
        (func, file or None, own[func, file] / rate, samples / rate, round(100 * own[func, file] / num_samples, 1))
        for (func, file), samples in sorted(total.items(), key=lambda item: (-own[item[0]], -item[1]))[:limit]
    ]
    return Sheet(("function", "file", "own", "total", "percent"), ("VARCHAR", "VARCHAR", *["DOUBLE"] * 3), rows)


def hottest(folded: str, rate: int, limit: int) -> Sheet:
    """The lines by what they took themselves, in seconds; `total` has what they called as well."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    num_samples = 0
    for frames, count in _stacks(folded):
        num_samples += count
        own[frames[-1]] += count
        for frame in set(frames):
            total[frame] += count
    rows = []
    for frame, samples in own.most_common(limit):
        found = _FRAME.match(frame)
        func, place = (found["func"], _place(found["file"], found["line"])) if found else (frame, None)
        rows.append((func, place, samples / rate, total[frame] / rate, round(100 * samples / num_samples, 1)))
    return Sheet(("function", "line", "own", "total", "percent"), ("VARCHAR", "VARCHAR", *["DOUBLE"] * 3), rows)


def job_lines(folded: str) -> Counter[tuple[str, str]]:
    """Samples of the thread that runs the script by the job's own innermost line, `train.py:88`, and what it calls of a
    package, `torch.save`; where it calls none, the job's function."""
    found: Counter[tuple[str, str]] = Counter()
    for frames, count in _stacks(folded):
        own = [at for at, frame in enumerate(frames) if _function(frame) is not None]
        if not own or not frames[0].endswith(_SCRIPTS_THREAD):
            continue
        frame = _FRAME.match(frames[own[-1]])
        called = _FRAME.match(frames[own[-1] + 1]) if own[-1] + 1 < len(frames) else None
        assert frame is not None  # it is one of the job's functions
        what = _in_package(called["func"], called["file"]) if called else None
        found[what or frame["func"], f"{os.path.basename(frame['file'])}:{frame['line']}"] += count
    return found


def job_frame(frames: Iterable[Frame]) -> str | None:
    """`evaluate (train.py:88)`: of a stack, innermost frame first, the first one of the job's own code."""
    for frame in frames:
        if frame.lineno and not _NOT_THE_JOBS.search(frame.file):
            return f"{frame.func.rpartition('.')[2]} ({os.path.basename(frame.file)}:{frame.lineno})"
    return None


def _in_package(func: str, file: str) -> str | None:
    """`torch.save` of a function of a package that is installed."""
    package = _PACKAGE.search(file)
    return f"{package['name'].removesuffix('.py')}.{func}" if package else None


def _stacks(folded: str) -> Iterator[tuple[list[str], int]]:
    for line in folded.splitlines():
        stack, _, count = line.rpartition(" ")
        if count.isdigit():
            yield stack.split(";"), int(count)


def _function(frame: str) -> tuple[str, str] | None:
    """Name and file, where it is one of the job's."""
    found = _FRAME.match(frame)
    if not found or found["line"] is None or _NOT_THE_JOBS.search(found["file"]):
        return None
    return found["func"], _place(found["file"], None)


def _place(file: str, line: str | None) -> str:
    short = os.sep.join(file.split(os.sep)[-2:])
    return short if line is None else f"{short}:{line}"
