"""A chart as lines of text: curves by uniplot, bars where x is a text."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

import numpy as np
from uniplot import plot_to_string

from probe_cli.render.terminal import bold, cut, visible, width_of

from .chart import Chart

__all__ = ["lines_of"]

#: Columns that uniplot takes for the frame and the labels of y.
FRAME = 14
MIN_WIDTH, MIN_HEIGHT, MAX_HEIGHT = 20, 6, 24
#: Lines that a chart takes besides its curves.
AROUND = 6
#: What tells series apart without colour.
MARKS = "*+ox#@%&=~^$"
_EIGHTHS = " ▏▎▍▌▋▊▉"


def lines_of(chart: Chart, columns: int, rows: int, colour: bool, as_points: bool = False) -> Iterator[str]:
    """The lines of `chart` for a terminal of this size."""
    if chart.kind == "text":
        yield from _bars(chart, columns, colour)
        return
    several = len(chart.series) > 1
    names = [cut(visible(one.name), 40) for one in chart.series]
    marks = {"character_set": "ascii", "force_ascii_characters": list(MARKS)} if several and not colour else {}
    y = f"{visible(chart.y)} by " if chart.y else ""
    drawn = plot_to_string(
        xs=[_numbers(one.xs, chart.kind) for one in chart.series],
        ys=[np.array(one.ys) for one in chart.series],
        lines=not as_points,
        width=max(MIN_WIDTH, columns - FRAME),
        height=min(MAX_HEIGHT, max(MIN_HEIGHT, rows - AROUND)),
        legend_labels=names if several else None,
        color=colour and several,
        title=f"{y}{visible(chart.x)}",
        **{"character_set": "braille", **marks},
    )
    yield from (line.rstrip() for line in drawn.splitlines())


def _numbers(xs: tuple[object, ...], kind: str) -> np.ndarray:
    return np.array(xs, dtype="datetime64[us]" if kind == "time" else float)


def _bars(chart: Chart, columns: int, colour: bool) -> Iterator[str]:
    """A bar for each text, one under the other; of several series each with its name."""
    several = len(chart.series) > 1
    bars = [
        (visible(f"{x}  {one.name}" if several else str(x)), y)
        for x in dict.fromkeys(x for one in chart.series for x in one.xs)
        for one in chart.series
        for other, y in zip(one.xs, one.ys, strict=True)
        if other == x
    ]
    known = [y for _, y in bars if not isnan(y)]
    low, high = min(0.0, *known), max(0.0, *known)
    name_width = min(max(width_of(name) for name, _ in bars), columns // 2)
    numbers = ["NULL" if isnan(y) else f"{y:.6g}" for _, y in bars]
    room = max(8, columns - name_width - max(map(len, numbers)) - 4)
    yield bold(f"{chart.y or ', '.join(one.name for one in chart.series)} by {visible(chart.x)}", colour)
    for (name, y), number in zip(bars, numbers, strict=True):
        name = cut(name, name_width)
        pad = " " * (name_width - width_of(name))
        length = 0.0 if isnan(y) or high == low else abs(y) / (high - low) * room
        yield f"{name}{pad}  {_bar(length)} {number}"


def _bar(length: float) -> str:
    whole, rest = divmod(round(length * 8), 8)
    return "█" * whole + _EIGHTHS[rest].strip()
