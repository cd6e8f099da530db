"""What one target adds to a table.

Runs in the host server, on the query's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from probe_agent.recorder.ring.table import Column

from .snapshot import Columns, Snapshot

__all__ = ["Part"]


@dataclass(frozen=True)
class Part:
    """What one target adds to a table: its coordinates, its columns, its rows."""

    coordinates: dict[str, object]
    columns: Sequence[Column]
    segments: Sequence[Columns]
    #: What the numbers in text columns stand for; None when these hold the text itself.
    strings: Sequence[str] | None = None
    #: Columns of floats of a ring in which NULL is NaN, and not what rings write for it.
    plain: frozenset[str] = frozenset()

    @classmethod
    def of_ring(cls, snapshot: Snapshot, place: dict[str, object]) -> Part:
        """The rows of a ring. Rank, world size and job are those that the target has by now (`place`): a rank that
        joins its job after the first rows has them on these too."""
        ring = snapshot.ring
        return cls({**ring.coordinates, **place}, ring.columns, snapshot.segments(), snapshot.strings)
