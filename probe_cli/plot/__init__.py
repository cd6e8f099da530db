"""Plots: the answer to a statement as a chart, on a terminal or in a file.

    chart.py       what of an answer is x, y and the name of a series, or why it cannot be drawn
    terminal.py    a chart as lines of text
    picture.py     a chart as a PNG, SVG or PDF, by matplotlib, which is an extra

Runs in the CLI.
"""

__all__: list[str] = []
