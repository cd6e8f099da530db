"""A chart as a file, by matplotlib: an extra, since few need it and it is 60 MB. Imported when a file is asked for."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from .chart import Chart

__all__ = ["draw"]

INCHES = (9.0, 5.0)
DPI = 120
#: Matplotlib's own colours tell so many apart.
FEW_SERIES = 10


def draw(chart: Chart, file: BinaryIO, format_: str, title: str | None = None, as_points: bool = False) -> None:
    """Write `chart` to `file` as png, svg or pdf."""
    figure = Figure(figsize=INCHES, dpi=DPI, layout="constrained")
    axes = figure.subplots()
    if len(chart.series) > FEW_SERIES:
        axes.set_prop_cycle(color=colormaps["turbo"](np.linspace(0.05, 0.95, len(chart.series))))
    if chart.kind == "text":
        texts = list(dict.fromkeys(str(x) for one in chart.series for x in one.xs))
        width = 0.8 / len(chart.series)
        for at, one in enumerate(chart.series):
            places = [texts.index(str(x)) + (at - (len(chart.series) - 1) / 2) * width for x in one.xs]
            axes.bar(places, one.ys, width, label=one.name)
        axes.set_xticks(
            range(len(texts)), texts, rotation=30 if len(texts) > 6 else 0, ha="right" if texts[6:] else "center"
        )
    else:
        for one in chart.series:
            style = {"linestyle": "none", "marker": "."} if as_points else {"linewidth": 1.2}
            axes.plot(list(one.xs), list(one.ys), label=one.name, **style)  # type: ignore[arg-type]  # its stubs know no dates
        axes.grid(alpha=0.3)
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    if title:
        axes.set_title(title)
    if len(chart.series) > FEW_SERIES:  # beside the chart: inside, so many names would hide a part of it
        figure.legend(loc="outside right upper", fontsize="small")
    elif len(chart.series) > 1:
        axes.legend()
    figure.savefig(file, format=format_)
