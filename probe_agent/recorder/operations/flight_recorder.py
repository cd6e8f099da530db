"""Entries of torch's Flight Recorder, the last collectives, for `torch.flight_recorder`.

Takes 14 µs of the GIL per entry, at most 2,000 entries, in one piece. It answers while the job hangs in a collective,
since a thread that waits in one does not hold the GIL.
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
    """Return one row per entry, newest first."""
    rows = [
        [entry[name] for name in COLUMNS]
        for dump in flight_recorder.dumps(with_entries=True)
        for entry in (flight_recorder.describe(entry) for entry in reversed(dump["entries"]))
    ]
    return {"columns": COLUMNS, "rows": rows, "notes": [] if rows else [flight_recorder.why_empty()]}
