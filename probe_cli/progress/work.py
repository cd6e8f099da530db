"""One piece of work, and how far it is. Plain data."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

__all__ = ["Work"]


@dataclass(eq=False)
class Work:
    """What is being done; `total` is None where its end is not known."""

    text: str
    total: int | None = None
    done: int = 0
    began: float = field(default_factory=time.monotonic)

    def advance(self, num: int = 1) -> None:
        self.done += num
