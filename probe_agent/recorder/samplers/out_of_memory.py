"""Out-of-memory errors of torch's CUDA allocator: its state at that moment, and the lines with the largest blocks.

torch calls the observer on the thread whose allocation has failed, before it raises. It reads counters of the host and
the list of blocks, some ms; it takes no memory of the device and waits for nothing. Rows reach the ring with the next
flush, and when the process ends. Attached only once the job has initialised CUDA, and never initialises it. torch has
no way to take an observer off: after a detach an empty function of ours stays.
"""

from __future__ import annotations

import sys
from functools import partial
from time import time_ns
from types import FunctionType
from typing import Any

from ..ring.table import MIB, NULL_FLOAT, NULL_INT, Column, Table
from ..source import Awaited, Recorder
from ..source import Source as BaseSource
from ..torch.blocks import by_line, segments

__all__ = ["OomBlocks", "Ooms", "Source"]

#: Lines that are kept of one error.
MAX_LINES = 50
#: Errors whose blocks are kept: a job that catches them and tries again must not pay each time.
MAX_ERRORS = 20

_COORDINATES = (
    Column("step", "int", "", "number of the running step; -1 before the first"),
    Column("ts", "time", "UTC", "time of the error"),
    Column("device", "text", "", "device name in this process: cuda:0"),
)


class Ooms(Table):
    name = "torch.ooms"
    doc = "Out-of-memory errors of torch's CUDA allocator, one row each, with its state then."
    capacity = 256
    columns = (
        *_COORDINATES,
        Column("requested", "float", "MiB", "size of the allocation that failed"),
        Column("allocated", "float", "MiB", "memory in tensors"),
        Column("reserved", "float", "MiB", "memory reserved on the device, in use or not"),
        Column("limit", "float", "MiB", "memory that the process may use of the device"),
        Column("free", "float", "MiB", "memory of the device that was free"),
    )


class OomBlocks(Table):
    name = "torch.oom_blocks"
    doc = "Blocks in use at an out-of-memory error, by the line that made them (memory.history), the largest 50."
    capacity = 2_048
    columns = (
        *_COORDINATES,
        Column("func", "text", "", "function of the line; NULL for blocks allocated before memory.history was on"),
        Column("file", "text", "", "its file, as the target has it"),
        Column("lineno", "int or null", "", "the line: the innermost that is not in torch"),
        Column("num_blocks", "int", "", "its blocks in use"),
        Column("size", "float", "MiB", "their size"),
        Column("largest", "float", "MiB", "the largest of them"),
    )


class Source(BaseSource):
    name = "torch.ooms"
    needs = ("torch", "torch.cuda")
    tables = (Ooms, OomBlocks)
    waits_for = Awaited("no allocation on a CUDA device has failed", "see the memory in use: probe … memory")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._ooms, self._blocks = recorder.buffer(Ooms), recorder.buffer(OomBlocks)
        self._called: list[Any] = []
        self._num = 0

    def tick(self) -> None:
        torch: Any = sys.modules["torch"]
        if self._called or not torch.cuda.is_initialized():
            return
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is None:
            return
        self._called.append(self.observe)
        # Without globals of the recorder, which it would keep alive after a detach.
        attach(partial(FunctionType(_call.__code__, {"__builtins__": {}}, "observe"), self._called))

    def stop(self) -> None:
        self._called.clear()

    def observe(self, device: int, requested: int, limit: int, free: int) -> None:
        """Note an error. Never raises: the job gets torch's own exception."""
        try:
            self._observe(sys.modules["torch"], device, requested, limit, free)
        except Exception as error:
            self.recorder.fail(self.name, error)

    def _observe(self, torch: Any, device: int, requested: int, limit: int, free: int) -> None:
        now, step = time_ns() // 1000, self.recorder.step.number
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        name = f"cuda:{device}"
        held = [
            float(stats[key]["all"]["current"]) / MIB if key in stats else NULL_FLOAT
            for key in ("allocated_bytes", "reserved_bytes")
        ]
        number = self._ooms.number
        self._ooms.rows.append((step, now, number(name), requested / MIB, *held, limit / MIB, free / MIB))
        self._num += 1
        if self._num > MAX_ERRORS:
            return
        number = self._blocks.number
        rows = [row for row in by_line(segments(torch.cuda)) if row[0] == name]
        for _, func, file, lineno, num, size, _, largest in rows[:MAX_LINES]:
            line: Any = NULL_INT if lineno is None else lineno
            texts = (number(func), number(file))  # type: ignore[arg-type]  # as by_line makes its rows
            self._blocks.rows.append((step, now, number(name), *texts, line, num, size, largest))


def _call(called: list[Any], *counters: int) -> None:
    for observe in called:
        observe(*counters)
