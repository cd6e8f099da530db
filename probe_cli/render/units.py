"""Durations for a glance: the exact number is in every other format."""

from __future__ import annotations

__all__ = ["age"]


def age(seconds: float | None) -> str | None:
    """`42s`, `12m 05s`, `3h 12m`, `5d 02h`."""
    if seconds is None:
        return None
    whole = max(0, int(seconds))
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
