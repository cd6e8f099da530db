"""Folded stacks as short tables: the functions of the job, and the lines, that most samples were taken in."""

from __future__ import annotations

from collections import Counter

from probe_cli.cluster.folded import FRAME, job_function, short_place, stacks

from .sheet import Sheet

__all__ = ["by_function", "hottest"]

#: Stands for the samples that have none.
OUTSIDE = "(no function of the job)"


def by_function(folded: str, rate: int, limit: int) -> Sheet:
    """The job's own functions, in seconds: `own` is the time in them and in what libraries do for them, `total` has the
    other functions of the job that they call as well."""
    own: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    num_samples = 0
    for frames, count in stacks(folded):
        functions = [key for frame in frames if (key := job_function(frame)) is not None] or [(OUTSIDE, "")]
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
    for frames, count in stacks(folded):
        num_samples += count
        own[frames[-1]] += count
        for frame in set(frames):
            total[frame] += count
    rows = []
    for frame, samples in own.most_common(limit):
        found = FRAME.match(frame)
        func, place = (found["func"], short_place(found["file"], found["line"])) if found else (frame, None)
        rows.append((func, place, samples / rate, total[frame] / rate, round(100 * samples / num_samples, 1)))
    return Sheet(("function", "line", "own", "total", "percent"), ("VARCHAR", "VARCHAR", *["DOUBLE"] * 3), rows)
