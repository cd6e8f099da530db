"""What torch's Flight Recorder has kept of the last collectives, for `torch.flight_recorder`.

14 µs of the GIL for each entry, 2,000 at most: torch makes the whole list at once. It answers while the training
hangs in a collective, since a thread that waits in one does not hold the GIL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..source import Recorder
from ..torch import flight_recorder

__all__ = ["answer"]

READS = True
COLUMNS = (
    "ts", "group", "group_desc", "seq", "op", "state", "age", "duration", "bytes", "dtype", "shape", "is_p2p",
    "backend", "started", "completed", "timeout", "thread",
)  # fmt: skip


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """One row an entry, the newest first."""
    rows = [
        [entry[name] for name in COLUMNS]
        for dump in flight_recorder.dumps(with_entries=True)
        for entry in (flight_recorder.describe(entry) for entry in reversed(dump["entries"]))
    ]
    return {"columns": COLUMNS, "rows": rows, "notes": [] if rows else [flight_recorder.why_empty()]}
