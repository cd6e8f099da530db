"""`python.backtrace`: where the main thread of each target is."""

from __future__ import annotations

from collections.abc import Sequence

from probe_agent.sql.tables.live_table import LiveTable
from probe_agent.sql.tables.stack_rows import FRAME_COLUMNS, Row, frame_rows
from probe_agent.targets import Target, take_stacks

__all__ = ["Backtrace"]


class Backtrace(LiveTable):
    name = "python.backtrace"
    doc = "Frames of the main thread, taken when the query runs."
    columns = FRAME_COLUMNS

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[Row], Sequence[str]]:
        taken = take_stacks(target, all_threads=False)
        main = tuple(thread for thread in taken.threads if thread.is_main)
        return list(frame_rows(target, main)), taken.notes
