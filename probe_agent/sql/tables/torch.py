"""Live tables of torch's own objects: `torch.modules`, `torch.optimizers`, `torch.dataloaders`, and so on.

The recorder puts the rows together; `recorder/operations/` says what that costs the target.
"""

from __future__ import annotations

from probe_agent.recorder.ring.table import Column

from .live_table import STEP, RecorderTable

__all__ = ["DataLoaders", "FlightRecorder", "MemoryBlocks", "Modules", "Optimizers", "ProcessGroups"]


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


class DataLoaders(RecorderTable):
    name = "torch.dataloaders"
    doc = "The DataLoaders that the training's frames and globals lead to, taken when the query runs."
    operation = "dataloaders"
    columns = (
        STEP,
        Column("loader", "text", "", "its class"),
        Column("place", "text", "", "where it was found; without a name (for x in DataLoader(…)) by its newest batch"),
        Column("dataset", "text", "", "class of the dataset"),
        Column("batch_size", "int", "", "samples a batch; NULL where the sampler decides"),
        Column("num_workers", "int", "", "worker processes it starts; 0: batches are made on the training thread"),
        Column("workers", "int", "", "processes it keeps now; only one with persistent workers knows"),
        Column("prefetch_factor", "int", "", "batches each worker makes ahead"),
        Column("pin_memory", "bool", "", "batches are copied to pinned memory"),
        Column("persistent_workers", "bool", "", "the workers live on after an epoch"),
        Column("drop_last", "bool", "", "an incomplete last batch is left out"),
        Column("in_order", "bool", "", "batches come in order; NULL before torch 2.6"),
        Column("timeout", "float", "s", "how long it waits for a batch; 0 is for ever"),
        Column("sampler", "text", "", "class of the sampler"),
        Column("collate_fn", "text", "", "what makes a batch of samples"),
        Column("worker_init_fn", "text", "", "what each worker calls first"),
        Column("start_method", "text", "", "fork, spawn or forkserver, where it was given"),
    )


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
