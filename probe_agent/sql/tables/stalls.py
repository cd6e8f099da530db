"""Live tables of the newest stall's snapshot: `python.stall_stacks` and `python.stall_snapshot`.

Read from the target's folder, so that they answer while the target cannot, and after it has ended.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from probe_agent.errors import NoAnswer
from probe_agent.recorder.ring.table import Column
from probe_agent.targets import StallSnapshot, Target, read_stall_snapshot

from .live_table import LiveTable, Row

__all__ = ["Snapshot", "Stacks"]

_HEAD = (
    Column("step", "int", "", "number of the step that did not end; -1 before the first"),
    Column("ts", "time", "UTC", "time of the snapshot"),
)


class Stacks(LiveTable):
    name = "python.stall_stacks"
    doc = "Frames of every thread during the newest stall, from the snapshot that the recorder left; see python.stalls."
    columns = (
        *_HEAD,
        Column("depth", "int", "", "0 is the innermost call"),
        Column("func", "text", "", "name of the function"),
        Column("file", "text", "", "path of its source in the target"),
        Column("lineno", "int", "", "the line being executed, not that of the def"),
        Column("thread", "text", "", "name of the thread"),
        Column("tid", "int", "", "the kernel's thread id; NULL if Python does not know it"),
        Column("is_training", "bool", "", "it is the thread that ends steps"),
    )

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[Row], Sequence[str]]:
        found, notes = _read(target, "frames")
        if found is None:
            return [], notes
        threads = list(found.rows("threads"))
        rows: list[Row] = []
        for frame in found.rows("frames"):
            number = frame["number"]
            if isinstance(number, int) and number < len(threads):
                thread = threads[number]
                place = (*(frame[name] for name in ("depth", "func", "file", "lineno")),)
                rows.append((*_head(found), *place, thread["thread"], thread["tid"], bool(thread["is_training"])))
        return rows, notes


class Snapshot(LiveTable):
    name = "python.stall_snapshot"
    doc = "The whole snapshot of the newest stall, one row per entry of a section, as JSON."
    columns = (
        *_HEAD,
        Column(
            "section",
            "text",
            "",
            "threads, frames, children (DataLoader workers among them), memory, tasks (threads as the kernel sees"
            " them), rows (the newest of some rings), flight_recorder, process_groups",
        ),
        Column("number", "int", "", "place of the entry in its section"),
        Column("content", "text", "", "the entry: a JSON object; take a field with content ->> 'field'"),
    )

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[Row], Sequence[str]]:
        found, notes = _read(target)
        if found is None:
            return [], notes
        rows = [
            (*_head(found), section, number, json.dumps(row))
            for section in found.sections
            for number, row in enumerate(found.rows(section))
        ]
        return rows, notes


def _read(target: Target, only: str = "") -> tuple[StallSnapshot | None, list[str]]:
    """Return the snapshot, and notes on what it lacks."""
    if not target.has_recorder:
        raise NoAnswer(
            f"{target} has no recorder in it: it has recorded nothing", f"attach first: probe {target.pid} inject"
        )
    found = read_stall_snapshot(target)
    if found is None:
        return None, [f"{target} has left no snapshot: no stall so far (see python.stalls)"]
    left_out = {section: found.left_out(section) for section in found.sections if only in ("", section)}
    return found, [
        f"{target}: {number} rows of {section} had no room in the snapshot (stall.size)"
        for section, number in left_out.items()
        if number
    ]


def _head(found: StallSnapshot) -> tuple[object, object]:
    step, noticed = found.stall.get("step"), found.stall.get("noticed")
    return (
        step if isinstance(step, int) else None,
        round(noticed * 1e6) if isinstance(noticed, int | float) else None,
    )
