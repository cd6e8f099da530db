"""`torch.optimizers`: the optimizers of each target."""

from __future__ import annotations

from probe_agent.recorder.ring.table import Column
from probe_agent.sql.tables.recorder_table import STEP, RecorderTable

__all__ = ["Optimizers"]


class Optimizers(RecorderTable):
    name = "torch.optimizers"
    doc = "The parameter groups of the optimizers that the training's frames and globals lead to, when the query runs."
    operation = "optimizers"
    columns = (
        STEP,
        Column("optimizer", "text", "", "class of the optimizer"),
        Column("place", "text", "", "where it was found"),
        Column("param_group", "int", "", "number of the group, counted from 0"),
        Column("name", "text", "", "name of the group, if it was given one"),
        Column("lr", "float", "", "learning rate; NULL while it is a tensor on a device"),
        Column("weight_decay", "float", "", "weight decay"),
        Column("options", "text", "JSON", "all options of the group"),
        Column("num_tensors", "int", "", "parameters in the group"),
        Column("parameters", "int", "", "numbers in them"),
        Column("dtype", "text", "", "their types"),
        Column("device", "text", "", "where they lie"),
        Column("state_memory", "float", "MiB", "what the optimizer keeps for them in this process"),
        Column("updates", "int", "", "how often the first of them was updated, where the optimizer counts"),
    )
