"""One row of `probe doctor`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Check"]


@dataclass(frozen=True)
class Check:
    """One thing we looked at: whether it is as it must be, what was seen, and what to do when it is not."""

    name: str
    ok: bool
    saw: str
    remedy: str = ""
