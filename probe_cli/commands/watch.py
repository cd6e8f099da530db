"""`probe … watch`: the same SQL again and again, in place on a terminal, one answer after the other in a pipe.

Ctrl-C ends it with 130, whether it waits or asks.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import time
from collections.abc import Iterator

import click

from probe_agent.errors import NoAnswer
from probe_agent.wire import QueryRequest
from probe_cli.cluster.query import Limits
from probe_cli.messages import print_error
from probe_cli.options import format_option, limits_options, text_from, timeout_option
from probe_cli.render.result import show_result
from probe_cli.render.terminal import dim, wants_colour
from probe_cli.session import Session

__all__ = ["command"]

#: To the upper left corner; and from a line's end, or from here on, nothing.
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


@click.command("watch")
@click.argument("sql", required=False)
@click.option("-f", "--file", "path", metavar="FILE", help="Read the SQL from FILE (- is stdin).")
@click.option(
    "-n",
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time from one query to the next.",
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N answers.")
@format_option()
@timeout_option(10.0, "How long each query may run.")
@limits_options
@click.pass_obj
def command(
    session: Session,
    sql: str | None,
    path: str | None,
    interval_s: float,
    count: int | None,
    format_: str,
    timeout_s: float,
    host_timeout_s: float,
    max_transfer_mib: float,
) -> int:
    """Repeat one SQL statement every few seconds, until Ctrl-C.

    A terminal shows the newest answer in place of the last one; a pipe gets one after the other, tables with the time
    above each. An endpoint that does not answer is asked again the next time.

    Example: probe -t node1:8080 -t node2:8080 watch 'SELECT rank, max(step) FROM python.steps GROUP BY rank' -n 2
    """
    request = QueryRequest(text_from(sql, path, "the SQL"), timeout_s=timeout_s)
    limits = Limits(host_timeout_s, max_transfer_mib)
    heading = f"every {interval_s:g} s: {' '.join(request.sql.split())}"
    code = num_asked = 0
    in_place = sys.stdout.isatty()
    while True:
        began = time.monotonic()
        with _screen(f"{time.strftime('%H:%M:%S')}, {heading}") if in_place else contextlib.nullcontext():
            if format_ == "table" and not in_place:
                print(("\n" if num_asked else "") + time.strftime("%H:%M:%S"), flush=True)
            try:
                code = show_result(session.query(request, limits), format_)
            except NoAnswer as error:
                if not num_asked:
                    raise
                code = error.exit_code
                print_error(error)
        num_asked += 1
        if num_asked == count:
            return code
        time.sleep(max(0.0, began + interval_s - time.monotonic()))


@contextlib.contextmanager
def _screen(heading: str) -> Iterator[None]:
    """What is printed meanwhile, remarks included, takes the place of what the terminal shows, as far as it fits."""
    colour = wants_colour(sys.stdout)
    size = shutil.get_terminal_size()
    shown = _Terminal()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        yield
    lines = [dim(heading[: size.columns - 1], colour), *shown.getvalue().splitlines()]
    if len(lines) > size.lines - 1:
        left_out = len(lines) - (size.lines - 2)
        lines = [*lines[: size.lines - 2], dim(f"{left_out} more lines: LIMIT, or a larger terminal", colour)]
    sys.stdout.write(_HOME + "".join(f"{line}{_REST_OF_LINE}\n" for line in lines) + _REST_OF_SCREEN)
    sys.stdout.flush()


class _Terminal(io.StringIO):
    """Text on its way to the terminal: whoever asks is told so, and fits into it."""

    def isatty(self) -> bool:
        return True
