"""Lines that allocated the GPU memory in use, for `torch.memory_blocks`.

Lists all blocks of torch's CUDA allocator once: some ms to 0.1 s, during which a thread that allocates waits. Lines are
known for blocks allocated while `memory.history` was on. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ring.table import MIB
from ..source import Recorder
from ..torch import loaded

__all__ = ["answer", "by_line"]

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
    rows = by_line(torch.cuda.memory_snapshot())
    notes = []
    if any(row[1] is None for row in rows):
        notes.append("blocks allocated while memory.history was 0 have no line: probe … config memory.history=100000")
    return {"columns": COLUMNS, "rows": rows, "notes": notes}


def by_line(segments: list[dict[str, Any]]) -> list[list[object]]:
    """Sum the used blocks of torch's snapshot by the innermost line outside torch."""
    sums: dict[tuple[object, ...], list[float]] = {}
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] != "active_allocated":
                continue
            size = block["size"] / MIB
            total = sums.setdefault(
                (f"cuda:{segment['device']}", *_line(block.get("frames") or ())), [0, 0.0, 0.0, 0.0]
            )
            total[0] += 1
            total[1] += size
            total[2] += block.get("requested_size", block["size"]) / MIB
            total[3] = max(total[3], size)
    return sorted(([*key, *total] for key, total in sums.items()), key=lambda row: -row[5])  # type: ignore[operator]


def _line(frames: Any) -> tuple[object, object, object]:
    own = [frame for frame in frames if "/torch/" not in frame["filename"]]
    frame = next(iter(own or frames), None)
    return (None, None, None) if frame is None else (frame["name"], frame["filename"], frame["line"])
