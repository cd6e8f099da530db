"""Lines that allocated the GPU memory in use, for `torch.memory_blocks`.

Lists all blocks of torch's CUDA allocator once: some ms to 0.1 s, during which a thread that allocates waits. Lines are
known for blocks allocated while `memory.history` was on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..source import Recorder
from ..torch import loaded
from ..torch.blocks import by_line, segments

__all__ = ["answer"]

READS = True
COLUMNS = ("device", "func", "file", "lineno", "num_blocks", "size", "requested", "largest")
_NOT_USED = {
    "message": "this target uses no CUDA device through torch, so its allocator has no blocks",
    "hint": "for CPU memory: SELECT ts, rss, pss FROM process.samples",
}


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row per line and device, largest first."""
    torch: Any = loaded("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {"error": _NOT_USED}
    rows = by_line(segments(torch.cuda))
    notes = []
    if any(row[1] is None for row in rows):
        notes.append("blocks allocated while memory.history was 0 have no line: probe … config memory.history=100000")
    return {"columns": COLUMNS, "rows": rows, "notes": notes}
