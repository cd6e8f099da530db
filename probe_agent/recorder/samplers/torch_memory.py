"""Memory of torch's CUDA allocator by device, once a second; on request, the line that allocated each block.

Runs on the recorder's thread: one read of the allocator's counters per second and device. The largest free block needs
a list of all blocks, which is made at most once a minute and for at most a thousandth of the time. With
`memory.history` the allocator keeps the Python stack of each block, about 2 µs per allocation on the training thread.
The recorder never initialises CUDA.
"""

from __future__ import annotations

import sys
from time import monotonic, perf_counter, time_ns
from typing import Any

from ..ring.table import MIB, NULL_FLOAT, Column, Table
from ..source import Awaited, Recorder
from ..source import Source as BaseSource
from ..torch.blocks import segments

__all__ = ["Memory", "Source", "largest_free", "statistics"]

INTERVAL_S = 1.0
BLOCKS_S = 60.0
BLOCKS_SHARE = 1e-3


class Memory(Table):
    name = "torch.memory"
    doc = "Memory of torch's CUDA allocator, one row per second and device in use."
    capacity = 65_536  # two hours of eight devices
    columns = (
        Column("step", "int", "", "number of the running step; -1 before the first"),
        Column("ts", "time", "UTC", "time of the sample"),
        Column("device", "text", "", "device name in this process: cuda:0"),
        Column("allocated", "float", "MiB", "memory in tensors"),
        Column("peak_allocated", "float", "MiB", "peak of allocated since the job last reset it"),
        Column("reserved", "float", "MiB", "memory reserved on the device, in use or not"),
        Column("peak_reserved", "float", "MiB", "peak of reserved since the job last reset it"),
        Column("inactive", "float", "MiB", "free parts of partly used blocks: fragmentation"),
        Column("requested", "float", "MiB", "memory requested by tensors, before rounding up"),
        Column("largest_free", "float", "MiB", "largest reserved block that is free; at most once a minute"),
        Column("num_segments", "int", "", "segments reserved on the device"),
        Column("retries", "int", "", "cache flushes to find memory, so far"),
        Column("ooms", "int", "", "out-of-memory errors, so far"),
    )


class Source(BaseSource):
    name = "torch.memory"
    needs = ("torch", "torch.cuda")
    tables = (Memory,)
    waits_for = Awaited(
        "no CUDA device has been used through torch yet", "for CPU memory: SELECT ts, rss FROM process.samples"
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._buffer = recorder.buffer(Memory)
        self._due = self._blocks_due = 0.0
        self._history = 0

    def tick(self) -> None:
        cuda: Any = sys.modules["torch"].cuda
        if not cuda.is_initialized():
            return
        self._follow(cuda, int(self.recorder.settings["memory.history"]))
        now = monotonic()
        if now < self._due:
            return
        self._due = now + INTERVAL_S
        listed = self._segments(cuda, now)
        for number in range(cuda.device_count()):
            stats = cuda.memory_stats_as_nested_dict(number)
            values = statistics(stats)
            if values is None:
                continue
            free = NULL_FLOAT if listed is None else largest_free(listed, number)
            device = self._buffer.number(f"cuda:{number}")
            self._buffer.rows.append(
                (self.recorder.step.number, time_ns() // 1000, device, *values[:6], free, *values[6:])
            )

    def stop(self) -> None:
        cuda: Any = sys.modules["torch"].cuda
        if self._history and cuda.is_initialized():  # it is not in a forked child, which must not touch CUDA
            self._follow(cuda, 0)

    def _follow(self, cuda: Any, wanted: int) -> None:
        """Have the allocator remember stacks, or not. One that remembers for the job is left alone."""
        if wanted == self._history:
            return
        already = getattr(sys.modules["torch"]._C, "_cuda_isHistoryEnabled", None)
        if not self._history and already is not None and already():
            return
        self._history = wanted
        if wanted:
            cuda.memory._record_memory_history("state", context="state", stacks="python", max_entries=wanted)
        else:
            cuda.memory._record_memory_history(None)

    def _segments(self, cuda: Any, now: float) -> Any:
        if now < self._blocks_due:
            return None
        began = perf_counter()
        listed = segments(cuda)
        self._blocks_due = now + max(BLOCKS_S, (perf_counter() - began) / BLOCKS_SHARE)
        return listed


def statistics(stats: dict[str, Any]) -> tuple[Any, ...] | None:
    """The columns from `allocated` on, without the largest free block; None where the device has not been used."""
    if not stats or not stats["reserved_bytes"]["all"]["peak"]:
        return None

    def mib(name: str, which: str = "current") -> float:
        return float(stats[name]["all"][which]) / MIB if name in stats else NULL_FLOAT

    return (
        mib("allocated_bytes"),
        mib("allocated_bytes", "peak"),
        mib("reserved_bytes"),
        mib("reserved_bytes", "peak"),
        mib("inactive_split_bytes"),
        mib("requested_bytes"),
        int(stats["segment"]["all"]["current"]),
        int(stats["num_alloc_retries"]),
        int(stats["num_ooms"]),
    )


def largest_free(segments: list[dict[str, Any]], device: int) -> float:
    """MiB of the largest block of a device that is reserved and not in use, out of torch's snapshot."""
    sizes = [
        block["size"]
        for segment in segments
        if segment["device"] == device
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    return max(sizes, default=0) / MIB
