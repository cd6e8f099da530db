"""`probe … plot`: the answer to a statement as a chart, on the terminal or in a file."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec

import click

from probe_agent.errors import BadRequest
from probe_agent.wire import QueryRequest
from probe_cli.cluster.query import Limits
from probe_cli.messages import remark
from probe_cli.options import limits_options, text_from, timeout_option
from probe_cli.plot.chart import Chart, chart_of
from probe_cli.plot.terminal import lines_of
from probe_cli.render.output import written_file
from probe_cli.render.result import NO_DATA
from probe_cli.render.terminal import columns_of, wants_colour
from probe_cli.session import Session

__all__ = ["command"]

FORMATS = (".png", ".svg", ".pdf")
#: Size of a chart that is not for a terminal.
COLUMNS, ROWS = 80, 24


@click.command("plot")
@click.argument("sql", required=False)
@click.option("-f", "--file", "path", metavar="FILE", help="Read the SQL from FILE (- is stdin).")
@click.option("-o", "--output", metavar="FILE", help="Draw to FILE: .png, .svg or .pdf. Needs matplotlib.")
@click.option("--by", metavar="COLUMN", help="The column that names the series, such as rank.")
@click.option("--points", is_flag=True, help="Draw points that are not connected.")
@click.option("--title", metavar="TEXT", help="A title for the file.")
@timeout_option(10.0, "How long the query may run.")
@limits_options
@click.pass_obj
def command(
    session: Session,
    sql: str | None,
    path: str | None,
    output: str | None,
    by: str | None,
    points: bool,
    title: str | None,
    timeout_s: float,
    host_timeout_s: float,
    max_transfer_mib: float,
) -> int:
    """Draw the answer to one SQL statement.

    The first column is x: a number, a time, or a text, which makes bars. Every other number is y. A text among the
    others names the series; so does rank.

    \b
    Examples:
      probe PID plot "SELECT step, loss FROM python.steps"
      probe -t PID --all plot "SELECT step, rank, rss FROM python.steps" -o a.png
      probe PID plot "SELECT op, sum(wait) FROM python.collectives GROUP BY 1"
    """
    _check(output, title)
    request = QueryRequest(text_from(sql, path, "the SQL"), timeout_s=timeout_s)
    answers = session.query(request, Limits(host_timeout_s, max_transfer_mib))
    for _, result in answers.answered[:1]:  # several have one answer together
        for note in result.notes:
            remark(note)
        if not result.rows:
            remark("there is nothing to draw: the answer has no rows")
            return answers.exit_code or NO_DATA
        chart = chart_of(result.columns, result.rows, by)
        if chart.num_left_out:
            remark(f"{chart.num_left_out} rows without {chart.x} are left out")
        _draw(chart, output, title, points)
    return answers.exit_code


def _check(output: str | None, title: str | None) -> None:
    """Refuse what cannot be drawn, before anybody is asked."""
    if output is None:
        if title is not None:
            raise BadRequest("--title is for a file", "name one with -o FILE, or leave out --title")
        return
    if not output.lower().endswith(FORMATS):
        raise BadRequest(f"{output}: unsupported file extension", f"use {', '.join(FORMATS)}")
    if find_spec("matplotlib") is None:
        raise BadRequest(
            "drawing to a file needs matplotlib, which is not installed",
            "pip install 'probe-training[plot]'; or leave out -o to draw on the terminal",
        )


def _draw(chart: Chart, output: str | None, title: str | None, points: bool) -> None:
    if output is None:
        columns, rows = columns_of(sys.stdout) or COLUMNS, ROWS
        if sys.stdout.isatty():
            rows = shutil.get_terminal_size().lines
        for line in lines_of(chart, columns, rows, wants_colour(sys.stdout), points):
            print(line)
        sys.stdout.flush()
        return
    from probe_cli.plot.picture import draw  # a door: matplotlib, which is an extra

    with written_file(output) as file:
        draw(chart, file, os.path.splitext(output)[1][1:].lower(), title, points)
