"""`torch.modules`: the models of each target."""

from __future__ import annotations

from probe_agent.recorder.ring.table import Column
from probe_agent.sql.tables.recorder_table import STEP, RecorderTable

__all__ = ["Modules"]


class Modules(RecorderTable):
    name = "torch.modules"
    doc = "The models that the training's frames and globals lead to, one row a module, taken when the query runs."
    operation = "modules"
    columns = (
        STEP,
        Column("module", "text", "", "class of the outermost module, then the path below it: GPT.blocks.0.attn"),
        Column("class", "text", "", "its class"),
        Column("depth", "int", "", "0 is the outermost module"),
        Column("place", "text", "", "where the outermost module was found"),
        Column("parameters", "int", "", "numbers in its parameters and those below it; what is shared counts once"),
        Column("own_parameters", "int", "", "numbers in its own parameters"),
        Column("trainable", "int", "", "of parameters, those that require a gradient"),
        Column("buffers", "int", "", "numbers in its buffers and those below it"),
        Column("dtype", "text", "", "types of its parameters and buffers and those below it"),
        Column("device", "text", "", "where these lie"),
        Column("memory", "float", "MiB", "parameters and buffers; of a sharded one the part in this process"),
        Column("own_memory", "float", "MiB", "the same without those below it"),
        Column("gradients", "float", "MiB", "gradients that exist now, its own and those below it"),
        Column("training", "bool", "", "in training mode; false after eval()"),
        Column("compiled", "bool", "", "torch.compile was applied to this very module"),
    )
