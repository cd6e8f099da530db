"""Lines of work on a terminal, drawn by rich. Behind the door of `progress`: 60 ms, for work that takes longer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table

from .work import Work

__all__ = ["drawn"]

REDRAWN_PER_S = 8
BAR_WIDTH = 30


def drawn(works: Callable[[], Sequence[Work]]) -> Live:
    """Draw what `works` returns on stderr, again and again, until the result is stopped."""
    spinner = Spinner("dots")  # one for all: each begins anew where it is made
    live = Live(
        console=Console(stderr=True),
        get_renderable=lambda: _lines(works(), spinner),
        refresh_per_second=REDRAWN_PER_S,
        transient=True,
        redirect_stdout=False,
    )
    live.start()
    return live


def _lines(works: Sequence[Work], spinner: Spinner) -> Table:
    lines = Table.grid(padding=(0, 1))
    for work in works:
        is_counted = work.total is not None and work.total > 1
        lines.add_row(
            spinner,
            work.text,
            ProgressBar(work.total, work.done, width=BAR_WIDTH) if is_counted else "",
            f"{work.done}/{work.total}" if is_counted else "",
            f"{time.monotonic() - work.began:.0f} s",
        )
    return lines
