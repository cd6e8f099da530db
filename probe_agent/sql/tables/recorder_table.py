"""A live table whose rows the recorder itself puts together: an operation of its control socket.

Runs in the host server, on a thread of its own; what it costs the target is said in `recorder/operations/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from probe_agent.errors import NoAnswer
from probe_agent.recorder.ring.table import Column
from probe_agent.targets import Target, ask

from .last_step import newest_step
from .live_table import LiveTable

__all__ = ["STEP", "RecorderTable"]

STEP = Column("step", "int", "", "the newest step the target has recorded")
ANSWER_S = 10.0


class RecorderTable(LiveTable):
    """Base of such tables. The recorder names the columns it sends; one that it does not know stays NULL."""

    operation: ClassVar[str]

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[tuple[object, ...]], Sequence[str]]:
        answer = ask(target, cls.operation, timeout_s=min(ANSWER_S, within_s))
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
                f"{target} described {cls.name} in a way we do not know: {error!r}", "attach again"
            ) from error
