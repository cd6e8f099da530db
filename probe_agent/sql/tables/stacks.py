"""`python.stacks`: where every thread of each target is."""

from __future__ import annotations

from collections.abc import Sequence

from probe_agent.sql.tables.live_table import LiveTable
from probe_agent.sql.tables.stack_rows import FRAME_COLUMNS, Row, frame_rows
from probe_agent.targets import Target, take_stacks

__all__ = ["Stacks"]


class Stacks(LiveTable):
    name = "python.stacks"
    doc = "Frames of every thread, taken when the query runs."
    columns = FRAME_COLUMNS

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[Row], Sequence[str]]:
        taken = take_stacks(target, all_threads=True)
        return list(frame_rows(target, taken.threads)), taken.notes
