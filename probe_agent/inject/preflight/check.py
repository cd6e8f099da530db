"""Rows of `probe doctor`. A file of its own, because all checks and the CLI need the class and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Check"]


@dataclass(frozen=True)
class Check:
    """One check: whether it passed, what was seen, and the remedy."""

    name: str
    ok: bool
    saw: str
    remedy: str = ""
