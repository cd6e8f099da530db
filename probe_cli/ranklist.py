"""Many ranks in few characters: `0-16,18-63`."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["num_ranks", "ranks_text"]


def ranks_text(ranks: Iterable[int]) -> str:
    """The ranks in order, neighbours as a range."""
    ordered = sorted(set(ranks))
    parts: list[str] = []
    at = 0
    while at < len(ordered):
        end = at
        while end + 1 < len(ordered) and ordered[end + 1] == ordered[end] + 1:
            end += 1
        # 0,1 is as short as 0-1 and reads as what it is
        parts.append(str(ordered[at]) if end == at else f"{ordered[at]}{',' if end == at + 1 else '-'}{ordered[end]}")
        at = end + 1
    return ",".join(parts)


def num_ranks(ranks: Iterable[int]) -> str:
    """`62 ranks (0-16,18-62)`, `rank 17`."""
    ordered = sorted(set(ranks))
    return f"rank {ordered[0]}" if len(ordered) == 1 else f"{len(ordered)} ranks ({ranks_text(ordered)})"
