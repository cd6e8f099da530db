"""Folded stacks as short tables: the functions of the job, and the lines, that most samples were taken in.

A line of the folded text is a stack, outermost first, and how many samples were alike.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator

from .sheet import Sheet

__all__ = ["by_function", "hottest"]

#: Code that the job has installed, not written; and ours.
_NOT_THE_JOBS = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+\w*/|^<frozen|^<probe>|/probe_agent/recorder/|^$")
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
