"""`probe … top`: a job on one screen, or as lines in a pipe."""

from __future__ import annotations

import sys
import time

import click

from probe_agent.errors import NoAnswer
from probe_cli.messages import print_error
from probe_cli.options import timeout_option
from probe_cli.session import Session
from probe_cli.top.app import TopApp
from probe_cli.top.look import Watcher
from probe_cli.top.text import line_of, sentence, sorted_by

__all__ = ["command"]


@click.command("top")
@click.option(
    "-n",
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.5),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time from one look to the next.",
)
@click.option("--plain", is_flag=True, help="Print lines, as in a pipe.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Print lines, and end after N looks.")
@timeout_option(3.0, "How long a rank may take to answer.")
@click.pass_obj
def command(session: Session, interval_s: float, plain: bool, count: int | None, timeout_s: float) -> int:
    """Watch a job on one screen: each rank's step, step time, phases, memory, GPU and current line, and what diagnose
    finds.

    Enter opens a rank: its phases, modules and stack. Space pauses, s sorts, f shows all findings, q quits. In a pipe
    it prints a line for each rank.

    Step times are drawn on one scale for all ranks. The phases are letters: D data, F forward, B backward, O optimizer,
    E evaluation, G generation, · other.
    """
    watcher = Watcher(session, timeout_s)
    if plain or count is not None or not sys.stdout.isatty():
        return _lines(watcher, interval_s, count)
    app = TopApp(watcher, interval_s)
    code = app.run()
    return code if code is not None else app.return_code or 0


def _lines(watcher: Watcher, interval_s: float, count: int | None) -> int:
    """Print a sentence and a line for each rank, again and again."""
    num_looks = code = 0
    while True:
        began = time.monotonic()
        try:
            look = watcher.look()
        except NoAnswer as error:
            if not num_looks:
                raise
            print_error(error)
            code = error.exit_code
        else:
            code = look.exit_code
            print(f"{time.strftime('%H:%M:%S')} {sentence(look)}")
            print("\n".join(line_of(rank) for rank in sorted_by("rank", look.ranks)), flush=True)
        num_looks += 1
        if num_looks == count:
            return code
        time.sleep(max(0.0, began + interval_s - time.monotonic()))
