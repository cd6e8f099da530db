"""The job's process groups and the progress of each, for `torch.process_groups`.

Costs as much as operations/flight_recorder.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..source import Recorder
from ..torch import flight_recorder

__all__ = ["answer"]

READS = True
COLUMNS = (
    "group", "group_desc", "backend", "group_rank", "size", "ranks", "last_enqueued", "last_started",
    "last_completed", "last_op", "last_state", "last_ts",
)  # fmt: skip
_STATUS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row per group, or per backend of a group that has run an operation."""
    progress = _progress()
    rows = []
    for group in flight_recorder.groups():
        ranks = group["ranks"]
        head = [group["group"], group["group_desc"]]
        tail = [group["group_rank"], len(ranks), flight_recorder.ranks_text(ranks)]
        found = progress.get(group["group"]) or [[group["backend"], *[None] * 6]]
        rows += [[*head, backend, *tail, *values] for backend, *values in found]
    return {"columns": COLUMNS, "rows": rows, "notes": [] if rows else [flight_recorder.why_empty()]}


def _progress() -> dict[str, list[list[object]]]:
    """Return by group name: backend, its three counts, and name, state and time of its last operation."""
    found: dict[str, list[list[object]]] = {}
    for dump in flight_recorder.dumps(with_entries=True):
        last: dict[str, dict[str, Any]] = {}
        seq_of: dict[tuple[str, int], int] = {}
        for entry in dump["entries"]:
            last[str(entry["pg_id"])] = entry
            seq_of[str(entry["pg_id"]), entry["op_id"]] = entry["collective_seq_id"]
        for number, entry in last.items():
            told = flight_recorder.describe(entry)
            status = dump.get("pg_status", {}).get(number, {})
            counts: list[object] = []
            for name in _STATUS:
                count = int(status.get(name, -1))
                if told["backend"] == "gloo":  # its count includes sends and receives
                    count = seq_of.get((number, count), count)
                counts.append(None if count < 0 else count)
            row = [told["backend"], *counts, told["op"], told["state"], told["ts"]]
            found.setdefault(told["group"], []).append(row)
    return found
