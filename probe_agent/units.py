"""Sizes and durations as tables and messages give them."""

from __future__ import annotations

__all__ = ["MIB", "duration_text", "mib"]

MIB = 2**20


def mib(num_bytes: float) -> float:
    """Return a size in MiB."""
    return num_bytes / MIB


def duration_text(seconds: float) -> str:
    """Return a duration with its unit, such as 2.5 s, 90 s, 15 min or 3.2 h."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
