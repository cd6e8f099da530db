"""Folded stacks as a short table: the lines that most samples were taken in.

A line of the folded text is a stack, outermost first, and how many samples were alike.
"""

from __future__ import annotations

import os
import re
from collections import Counter

from .sheet import Sheet

__all__ = ["hottest"]

_FRAME = re.compile(r"(?P<func>.*) \((?P<file>.*?)(?::(?P<line>\d+))?\)$")


def hottest(folded: str, rate: int, limit: int) -> Sheet:
    """The lines by what they took themselves, in seconds; `total` has what they called as well."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    num_samples = 0
    for line in folded.splitlines():
        stack, _, count = line.rpartition(" ")
        if not count.isdigit():
            continue
        frames = stack.split(";")
        num_samples += int(count)
        own[frames[-1]] += int(count)
        for frame in set(frames):
            total[frame] += int(count)
    rows = []
    for frame, samples in own.most_common(limit):
        found = _FRAME.match(frame)
        func, place = (found["func"], _place(found["file"], found["line"])) if found else (frame, None)
        rows.append((func, place, samples / rate, total[frame] / rate, round(100 * samples / num_samples, 1)))
    return Sheet(("function", "line", "own", "total", "percent"), ("VARCHAR", "VARCHAR", *["DOUBLE"] * 3), rows)


def _place(file: str, line: str | None) -> str:
    short = os.sep.join(file.split(os.sep)[-2:])
    return short if line is None else f"{short}:{line}"
