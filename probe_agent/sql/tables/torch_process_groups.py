"""`torch.process_groups`: the process groups of each target, and how far each has come."""

from __future__ import annotations

from probe_agent.recorder.ring.table import Column
from probe_agent.sql.tables.recorder_table import STEP, RecorderTable

__all__ = ["ProcessGroups"]


class ProcessGroups(RecorderTable):
    name = "torch.process_groups"
    doc = (
        "The process groups that each target is a member of, and how far each has come when the query runs; a rank"
        " whose last_enqueued is behind that of the others is the one they wait for."
    )
    operation = "process_groups"
    columns = (
        STEP,
        Column("group", "text", "", "its name, the same on all its ranks"),
        Column("group_desc", "text", "", "what the job calls it"),
        Column("backend", "text", "", "gloo or nccl"),
        Column("group_rank", "int", "", "the target's rank in the group"),
        Column("size", "int", "", "number of ranks in the group"),
        Column("ranks", "text", "", "these ranks, as numbered in the job"),
        Column("last_enqueued", "int", "", "number of the last collective that was called; NULL before the first"),
        Column("last_started", "int", "", "of the last that had started; NULL on gloo, which does not tell"),
        Column("last_completed", "int", "", "of the last that was complete"),
        Column("last_op", "text", "", "what was called last"),
        Column("last_state", "text", "", "how far that is: scheduled, started, completed or failed"),
        Column("last_ts", "time", "UTC", "when it was called"),
    )
