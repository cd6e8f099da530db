"""Blocks of torch's CUDA allocator in use, summed by the line that allocated them.

Works on the snapshot that torch makes of its allocator: host data, nothing waits for the device.
"""

from __future__ import annotations

from typing import Any

from ..ring.table import MIB

__all__ = ["by_line", "segments"]


def segments(cuda: Any) -> list[dict[str, Any]]:
    """Return torch's list of segments and their blocks, where possible without the history of a job that keeps one."""
    try:
        return list(cuda.memory_snapshot(include_traces=False))
    except TypeError:  # torch has the argument since 2.12
        return list(cuda.memory_snapshot())


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
