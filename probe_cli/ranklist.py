"""How many ranks, and which: `62 ranks (0-16,18-62)`, `rank 17`."""

from __future__ import annotations

from collections.abc import Iterable

from .endpoint import ranges

__all__ = ["num_ranks", "ranks_text"]


def ranks_text(ranks: Iterable[int]) -> str:
    """The ranks in order, neighbours as a range: 0-16,18-63."""
    return ranges(sorted(set(ranks)))


def num_ranks(ranks: Iterable[int]) -> str:
    """How many they are, and which."""
    ordered = sorted(set(ranks))
    return f"rank {ordered[0]}" if len(ordered) == 1 else f"{len(ordered)} ranks ({ranges(ordered)})"
