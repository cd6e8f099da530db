"""What comes of a statement, before somebody sends it on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Answer"]


@dataclass(frozen=True)
class Answer:
    """An answer, and what has to be known about it."""

    pieces: Sequence[bytes | memoryview]
    truncated: bool
    notes: tuple[str, ...]
    #: Of each table that was named the shape, as the wire calls it.
    tables: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """All of it at once."""
        return b"".join(self.pieces)
