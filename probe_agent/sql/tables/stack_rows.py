"""Frames as rows: what `python.backtrace` and `python.stacks` have in common."""

from __future__ import annotations

from collections.abc import Iterator

from probe_agent.recorder.ring.table import Column
from probe_agent.targets import Target
from probe_agent.wire import ThreadStack

from .last_step import newest_step

__all__ = ["FRAME_COLUMNS", "Row", "frame_rows"]

Row = tuple[object, ...]

FRAME_COLUMNS: tuple[Column, ...] = (
    Column("step", "int", "", "the newest step the target has recorded"),
    Column("depth", "int", "", "0 is the innermost call"),
    Column("func", "text", "", "name of the function"),
    Column("file", "text", "", "path of its source, as the target has it"),
    Column("lineno", "int", "", "the line being executed, not that of the def"),
    Column("frame_type", "text", "", "python or native"),
    Column("thread", "text", "", "name of the thread"),
    Column("tid", "int", "", "the kernel's number for the thread; NULL where Python does not know it"),
)


def frame_rows(target: Target, threads: tuple[ThreadStack, ...]) -> Iterator[Row]:
    """One row a frame, innermost first."""
    newest = newest_step(target)
    step = newest[0] if newest else None
    for thread in threads:
        for frame in thread.frames:
            yield step, frame.depth, frame.func, frame.file, frame.lineno, frame.frame_type, thread.thread, thread.tid
