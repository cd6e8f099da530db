"""Kinds of live tables: declared like recorded ones, but their rows are taken when a query names them.

Runs in the host server, on a thread of the query's own, while a query worker waits; only tables with `in_worker` are
read in the worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from probe_agent.errors import NoAnswer
from probe_agent.recorder.ring.table import Column, Table
from probe_agent.targets import Target, ask, newest_step

if TYPE_CHECKING:
    import numpy as np

__all__ = ["STEP", "Columns", "HostTable", "LiveTable", "Part", "RecorderTable", "Row"]

Row = tuple[object, ...]
#: Values by name of the column; the form in which DuckDB takes rows from us.
Columns = dict[str, "np.ndarray[Any, Any]"]  # Any: shape and type of an array differ from column to column

STEP = Column("step", "int", "", "the newest step the target has recorded")
#: For the recorder to put its rows together, unless the query has less time left.
_ANSWER_S = 10.0


@dataclass(frozen=True)
class Part:
    """What one target adds to a table: its coordinates, its columns, its rows."""

    coordinates: dict[str, object]
    columns: Sequence[Column]
    segments: Sequence[Columns]
    #: The strings that numbers in text columns stand for; None if the columns hold the text itself.
    strings: Sequence[str] | None = None
    #: Float columns of a ring in which NULL is NaN, rather than the number that rings write for it.
    plain: frozenset[str] = frozenset()


class LiveTable(Table):
    """Base of every live table. Unlike in a ring, any value may be None."""

    #: Whether a query worker takes the rows itself: they come from files, not from a target.
    in_worker: ClassVar[bool] = False

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[Row], Sequence[str]]:
        """Return the rows of `target` now, and notes. Raises NoAnswer, after `within_s` at the latest if it can."""
        raise NotImplementedError


class RecorderTable(LiveTable):
    """Base of tables whose rows the recorder puts together: an operation of its control socket.

    The recorder names the columns that it sends; columns that it does not know are NULL.
    """

    operation: ClassVar[str]

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[Row], Sequence[str]]:
        answer = ask(target, cls.operation, timeout_s=min(_ANSWER_S, within_s))
        newest = newest_step(target)
        try:
            at = {name: place for place, name in enumerate(answer["columns"])}
            places = [at.get(column.name) for column in cls.columns[1:]]
            rows = [
                (newest[0] if newest else None, *(None if place is None else row[place] for place in places))
                for row in answer["rows"]
            ]
            return rows, [f"{target}: {note}" for note in answer["notes"]]
        except (KeyError, TypeError, IndexError) as error:
            raise NoAnswer(
                f"cannot read the rows of {cls.name} that {target} has sent: {error!r}",
                f"attach again: probe {target.pid} inject",
            ) from error


class HostTable(LiveTable):
    """Base of tables about the host: taken once a query, and each row finds its target itself."""

    @classmethod
    def take_host(cls, targets: Sequence[Target]) -> tuple[Sequence[Part], Sequence[str]]:
        """Return the rows now, each with the coordinates of its target (one of `targets`), and notes."""
        raise NotImplementedError
