"""Figures with their spread: medians, ratios of pairs with an interval, tables in Markdown.

A ratio is taken pair by pair within a round, so that common slowdowns cancel; its interval is the middle 95 %
of the medians of 10,000 resamplings, drawn from a generator of our own with a fixed seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

__all__ = ["Figure", "figure", "ratio", "table"]

NUM_RESAMPLES = 10_000


@dataclass(frozen=True)
class Figure:
    """A median, the 95 % interval of that median, and the range of the values."""

    median: float
    low: float
    high: float
    least: float
    most: float
    num: int

    def show(self, scale: float = 1.0, digits: int = 2, unit: str = "") -> str:
        """`1.23 ms (1.20 to 1.27)`"""
        value, low, high = (f"{number * scale:.{digits}f}" for number in (self.median, self.low, self.high))
        return f"{value}{unit and ' ' + unit} ({low} to {high})"

    def show_change(self) -> str:
        """Format a ratio as a change: `+0.8 % (+0.5 to +1.1)`"""
        value, low, high = (f"{(number - 1) * 100:+.2f}" for number in (self.median, self.low, self.high))
        return f"{value} % ({low} to {high})"


def figure(values: Sequence[float]) -> Figure:
    """Return the median of `values` and its interval."""
    draw = random.Random(0)
    resampled = [median(draw.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES)]
    cuts = quantiles(resampled, n=40)  # every 2.5 %
    return Figure(median(values), cuts[0], cuts[-1], min(values), max(values), len(values))


def ratio(values: Sequence[float], bases: Sequence[float]) -> Figure:
    """Divide each of `values` by the one of `bases` taken in the same round."""
    return figure([value / base for value, base in zip(values, bases, strict=True)])


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], align: Callable[[int], bool] = bool) -> str:
    """Render a Markdown table; columns for which `align` is true (all but the first) are right-aligned."""
    rule = ["---:" if align(at) else "---" for at in range(len(headings))]
    lines = [headings, rule, *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
