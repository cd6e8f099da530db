"""Ranks, ages, sizes and shares as messages and tables show them; exact numbers are in every other format.

Plain functions, imported by every other part of the command line.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "age",
    "by_reason",
    "few",
    "mebibytes",
    "num_ranks",
    "percent",
    "ranks_in",
    "ranks_text",
    "seconds",
    "sum_up",
]


def ranks_text(ranks: Iterable[int], most: int | None = 16) -> str:
    """The ranks in order, neighbours as a range, `most` such ranges at most: 0-16,18-63; 0,2,4 and 509 more."""
    parts: list[list[int]] = []
    ordered = sorted(set(ranks))
    for rank in ordered:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], rank]
        else:
            parts.append([rank])
    listed = ",".join("-".join(map(str, part)) for part in parts[:most])
    more = len(ordered) - bisect_right(ordered, parts[:most][-1][-1]) if parts else 0
    return f"{listed} and {more:,} more" if more else listed


def num_ranks(ranks: Iterable[int]) -> str:
    """How many ranks, and which: `62 ranks (0-16,18-62)`, `rank 17`."""
    ordered = sorted(set(ranks))
    return f"rank {ordered[0]}" if len(ordered) == 1 else f"{len(ordered)} ranks ({ranks_text(ordered)})"


def by_reason(reasons: Mapping[str, str], most: int = 1000) -> list[str]:
    """The names with the same reason as one text, `most` of them by name: `clipping, schedule and 24 more: gone`."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return [
        f"{', '.join(some[:most])}{f' and {len(some) - most} more' if some[most:] else ''}: {reason}"
        for reason, some in names.items()
    ]


def age(age_s: float | None) -> str | None:
    """`42s`, `12m 05s`, `3h 12m`, `5d 02h`."""
    if age_s is None:
        return None
    whole = max(0, int(age_s))
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}h"
    if hours:
        return f"{hours}h {minute:02}m"
    if minutes:
        return f"{minutes}m {second:02}s"
    return f"{second}s"


def seconds(value: float) -> str:
    """`1.3 s`, `210 ms`, `4.2 ms`, `80 µs`."""
    size = abs(value)
    if size < 5e-7:
        return "0 ms"
    if size >= 10:
        return f"{value:.0f} s"
    if size >= 1:
        return f"{value:.1f} s"
    if size >= 0.01:
        return f"{value * 1e3:.0f} ms"
    if size >= 0.001:
        return f"{value * 1e3:.1f} ms"
    return f"{value * 1e6:.0f} µs"


def mebibytes(value: float) -> str:
    """`0.41 MiB`, `812 MiB`, `11.8 GiB`."""
    if abs(value) >= 1024:
        return f"{value / 1024:.1f} GiB"
    return f"{value:.2g} MiB" if abs(value) < 10 else f"{value:.0f} MiB"


def percent(share: float) -> str:
    """`12 %`."""
    return f"{share * 100:.0f} %"


def sum_up(sentences: Sequence[str], at_most: int = 4) -> str:
    """Several findings as one text, the first ones in full."""
    more = len(sentences) - at_most
    return "; ".join(sentences[:at_most]) + (f"; and {more} more" if more > 0 else "")


def ranks_in(text: str) -> tuple[int, ...]:
    """`0, 3-7` or `0-14:2`, as the recorder writes the ranks of a group; nothing of a text that is cut."""
    found: list[int] = []
    for part in text.split(","):
        span, _, by = part.strip().partition(":")
        first, dash, last = span.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (by and not by.isdigit()):
            return ()
        found += range(int(first), int(last or first) + 1, int(by or 1))
    return tuple(found)


def few(lines: Sequence[str], most: int = 16) -> list[str]:
    """The first of these lines, and how many more there are: a job may have thousands of ranks."""
    more = len(lines) - most
    return [*lines[:most], f"and {more:,} more of this kind"] if more > 0 else list(lines)
