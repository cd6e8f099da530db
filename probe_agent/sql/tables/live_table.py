"""What a live table is: declared like a recorded one, but its rows are taken from the target when a query names it.

Runs in the host server, on a thread of the question's own, while a query worker waits. A live table is one module in
`live/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import ClassVar

from probe_agent.recorder.ring.table import Table
from probe_agent.targets import Target

__all__ = ["LiveTable", "Row", "live_tables"]

Row = tuple[object, ...]


class LiveTable(Table):
    """Base of every live table. Unlike in a ring, any value may be None."""

    #: Whether a query worker takes the rows itself: they come from files, and from no target.
    in_worker: ClassVar[bool] = False

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[Row], Sequence[str]]:
        """The rows of `target` now, and notes about them. Raises NoAnswer, if it can after `within_s`."""
        raise NotImplementedError


@cache
def live_tables() -> dict[str, type[LiveTable]]:
    """All of them by name."""
    found = {table.name: table for table in _declared()}
    return dict(sorted(found.items()))


def _declared() -> Iterator[type[LiveTable]]:
    from probe_agent.sql import tables

    for info in iter_modules(tables.__path__, tables.__name__ + "."):
        for declared in vars(import_module(info.name)).values():
            is_table = isinstance(declared, type) and issubclass(declared, LiveTable) and hasattr(declared, "name")
            if is_table and declared.__module__ == info.name:
                yield declared
