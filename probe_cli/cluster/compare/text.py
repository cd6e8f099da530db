"""Numbers as a sentence has them."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["mebibytes", "percent", "seconds", "sum_up"]


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
    """`812 MiB`, `11.8 GiB`."""
    return f"{value:.0f} MiB" if abs(value) < 1024 else f"{value / 1024:.1f} GiB"


def percent(share: float) -> str:
    """`12 %`."""
    return f"{share * 100:.0f} %"


def sum_up(sentences: Sequence[str], at_most: int = 4) -> str:
    """Several findings as one text, the first ones in full."""
    more = len(sentences) - at_most
    return "; ".join(sentences[:at_most]) + (f"; and {more} more" if more > 0 else "")
