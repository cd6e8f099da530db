"""`torch.flight_recorder`: the last collectives of each target, as torch itself has kept them."""

from __future__ import annotations

from probe_agent.recorder.ring.table import Column
from probe_agent.sql.tables.recorder_table import STEP, RecorderTable

__all__ = ["FlightRecorder"]


class FlightRecorder(RecorderTable):
    name = "torch.flight_recorder"
    doc = (
        "The collectives that torch's Flight Recorder has kept (2,000 unless the job sets TORCH_FR_BUFFER_SIZE), when"
        " the query runs; it answers while the training hangs in one of them. Sends and receives on gloo are not kept."
    )
    operation = "flight_recorder"
    columns = (
        STEP,
        Column("ts", "time", "UTC", "when it was called"),
        Column("group", "text", "", "name of its process group"),
        Column("group_desc", "text", "", "what the job calls the group"),
        Column("seq", "int", "", "its number in the group, the same on all ranks; of a send or receive its own count"),
        Column("op", "text", "", "what the backend calls it"),
        Column(
            "state",
            "text",
            "",
            "scheduled, started, completed or failed; on gloo completed may be failed, and started is not told",
        ),
        Column("age", "float", "s", "since it was called"),
        Column("duration", "float", "s", "on the device; NULL unless the job sets TORCH_NCCL_ENABLE_TIMING"),
        Column("bytes", "int", "bytes", "what this rank put in"),
        Column("dtype", "text", "", "type of its first tensor"),
        Column("shape", "text", "", "shape of the first; +2 says that there are two more"),
        Column("is_p2p", "bool", "", "a send or a receive"),
        Column("backend", "text", "", "gloo or nccl"),
        Column("started", "time", "UTC", "when torch found that it had started; NULL on gloo"),
        Column("completed", "time", "UTC", "when torch found that it was complete; NULL on gloo"),
        Column("timeout", "float", "s", "after how long the group gives up"),
        Column("thread", "text", "", "name of the thread that called it"),
    )
