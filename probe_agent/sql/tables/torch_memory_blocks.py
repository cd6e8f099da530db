"""`torch.memory_blocks`: GPU memory in use, by the line that made it."""

from __future__ import annotations

from probe_agent.recorder.ring.table import Column
from probe_agent.sql.tables.recorder_table import STEP, RecorderTable

__all__ = ["MemoryBlocks"]


class MemoryBlocks(RecorderTable):
    name = "torch.memory_blocks"
    doc = (
        "Blocks of torch's CUDA allocator that are in use, by the line that made them, when the query runs; switch"
        " lines on with the setting memory.history. An error where no CUDA device is used. Not run on a GPU yet."
    )
    operation = "memory_blocks"
    columns = (
        STEP,
        Column("device", "text", "", "as torch calls it in this process: cuda:0"),
        Column("func", "text", "", "function of the line; NULL of blocks made before memory.history was on"),
        Column("file", "text", "", "its file, as the target has it"),
        Column("lineno", "int", "", "the line: the innermost that is not in torch"),
        Column("num_blocks", "int", "", "blocks it made that are in use"),
        Column("size", "float", "MiB", "their size"),
        Column("requested", "float", "MiB", "what was asked for, before rounding up"),
        Column("largest", "float", "MiB", "the largest of them"),
    )
