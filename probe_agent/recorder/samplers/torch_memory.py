"""What torch's CUDA allocator holds, by device, once a second; and, when asked for, which line made each block.

Runs on our own thread: one look at the allocator's counters a second and device. The largest free block is not among
these; it takes a list of all blocks, which is made once a minute at most, and for a thousandth of the time at most.
With `memory.history` the allocator keeps the Python stack of each block, about 2 µs an allocation on the training
thread. CUDA is never initialised by us. None of this has been run on a GPU yet.
"""

from __future__ import annotations

import sys
from time import monotonic, perf_counter, time_ns
from typing import Any

from ..ring.table import MIB, NULL_FLOAT, Column, Table
from ..source import Awaited, Recorder
from ..source import Source as BaseSource

__all__ = ["Memory", "Source", "largest_free", "statistics"]

INTERVAL_S = 1.0
BLOCKS_S = 60.0
BLOCKS_SHARE = 1e-3


class Memory(Table):
    name = "torch.memory"
    doc = "What torch's CUDA allocator held, once a second, one row a device in use. Not run on a GPU yet."
    capacity = 65_536  # two hours of eight devices
    columns = (
        Column("step", "int", "", "the step being taken; -1 before the first"),
        Column("ts", "time", "UTC", "when it was looked at"),
        Column("device", "text", "", "as torch calls it in this process: cuda:0"),
        Column("allocated", "float", "MiB", "in tensors"),
        Column("peak_allocated", "float", "MiB", "most that was in tensors since the job last reset the peak"),
        Column("reserved", "float", "MiB", "taken from the device, in use or not"),
        Column("peak_reserved", "float", "MiB", "most that was taken"),
        Column("inactive", "float", "MiB", "free parts of blocks that are in use elsewhere: fragmentation"),
        Column("requested", "float", "MiB", "asked for by the tensors, before rounding up"),
        Column("largest_free", "float", "MiB", "largest free block that is reserved; once a minute at most"),
        Column("num_segments", "int", "", "pieces taken from the device"),
        Column("retries", "int", "", "times the cache had to be flushed to find memory, so far"),
        Column("ooms", "int", "", "times there was none, so far"),
    )


class Source(BaseSource):
    name = "torch.memory"
    needs = ("torch", "torch.cuda")
    tables = (Memory,)
    waits_for = Awaited(
        "no CUDA device has been used through torch yet", "see process.samples for the memory of a process on a CPU"
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
        segments = self._segments(cuda, now)
        for number in range(cuda.device_count()):
            stats = cuda.memory_stats_as_nested_dict(number)
            values = statistics(stats)
            if values is None:
                continue
            free = NULL_FLOAT if segments is None else largest_free(segments, number)
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
        segments = cuda.memory_snapshot()
        self._blocks_due = now + max(BLOCKS_S, (perf_counter() - began) / BLOCKS_SHARE)
        return segments


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
