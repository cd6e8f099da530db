"""Live tables of torch's own objects: `torch.modules`, `torch.optimizers`, `torch.dataloaders`, and so on.

The recorder puts the rows together; `recorder/operations/` says what that costs the target.
"""

from __future__ import annotations

from probe_agent.recorder.ring.table import Column

from .live_table import STEP, RecorderTable

__all__ = [
    "Arguments", "DataLoaders", "Evaluations", "FlightRecorder", "Gradients", "KeptWeights", "LossGraphs",
    "MemoryBlocks", "Modules", "Optimizers", "Parameters", "ProcessGroups", "Schedulers", "Tensors",
]  # fmt: skip


class Modules(RecorderTable):
    name = "torch.modules"
    doc = "The models reachable from the job's frames and globals, one row per module, read when the query runs."
    operation = "modules"
    columns = (
        STEP,
        Column("module", "text", "", "class of the outermost module, then the path below it: GPT.blocks.0.attn"),
        Column("class", "text", "", "its class"),
        Column("depth", "int", "", "0 is the outermost module"),
        Column("place", "text", "", "where the outermost module was found"),
        Column("parameters", "int", "", "number of parameters, including those below it; shared ones count once"),
        Column("own_parameters", "int", "", "number of its own parameters"),
        Column("trainable", "int", "", "of parameters, those that require a gradient"),
        Column("buffers", "int", "", "number of buffer elements, including those below it"),
        Column("dtype", "text", "", "types of its parameters and buffers, including those below it"),
        Column("device", "text", "", "their devices"),
        Column("memory", "float", "MiB", "parameters and buffers; if sharded, the part in this process"),
        Column("own_memory", "float", "MiB", "the same without those below it"),
        Column("gradients", "float", "MiB", "gradients when a step had ended, with those below it; NULL if none has"),
        Column("own_gradients", "float", "MiB", "the same without those below it"),
        Column("training", "bool", "", "in training mode; false after eval()"),
        Column("compiled", "bool", "", "torch.compile was applied to this very module"),
        Column("autocast", "text", "", "type that autocast computed in, in a sampled forward; NULL if none was seen"),
        Column(
            "statistics_versions",
            "int",
            "",
            "updates of batch norm's running statistics, as torch counts them; NULL of others",
        ),
    )


class Optimizers(RecorderTable):
    name = "torch.optimizers"
    doc = "The parameter groups of the optimizers reachable from the job's frames and globals, when the query runs."
    operation = "optimizers"
    columns = (
        STEP,
        Column("optimizer", "text", "", "class of the optimizer"),
        Column("place", "text", "", "where it was found"),
        Column("param_group", "int", "", "number of the group, counted from 0"),
        Column("name", "text", "", "name of the group, if it has one"),
        Column("lr", "float", "", "learning rate; NULL while it is a tensor on a device"),
        Column("weight_decay", "float", "", "weight decay"),
        Column("options", "text", "JSON", "all options of the group"),
        Column("num_tensors", "int", "", "parameters in the group"),
        Column("parameters", "int", "", "number of their elements"),
        Column("dtype", "text", "", "their types"),
        Column("device", "text", "", "their devices"),
        Column("state_memory", "float", "MiB", "the optimizer's state for them in this process"),
        Column("updates", "int", "", "number of updates of the first of them, if the optimizer counts"),
        Column(
            "cleared_early",
            "int",
            "",
            "steps of the optimizer that found nothing: its zero_grad had cleared what the last backward made",
        ),
        Column(
            "cleared_parts",
            "int",
            "",
            "times that its zero_grad, before it stepped, cleared gradients of a loss that was scaled by a constant as"
            " those of accumulated batches are; counted in steps whose loss is read",
        ),
    )


class Parameters(RecorderTable):
    name = "torch.parameters"
    doc = (
        "The parameters of the models and optimizers reachable from the job's frames and globals, with the optimizer"
        " that holds each and how often it was changed, when the query runs; values are not read."
    )
    operation = "parameters"
    columns = (
        STEP,
        Column("module", "text", "", "path of its module: GPT.blocks.0.attn; NULL if only an optimizer has it"),
        Column("parameter", "text", "", "its name there: weight"),
        Column("parameters", "int", "", "number of its elements"),
        Column("shape", "text", "", "its shape, 280000x32; of a DTensor that of the whole"),
        Column("trainable", "bool", "", "it requires a gradient"),
        Column("versions", "int", "", "changes in place so far, as torch counts them; fused optimizers do not count"),
        Column("has_gradient", "bool", "", "it had a gradient when a step had ended; NULL if none has"),
        Column("gradient_versions", "int", "", "changes in place of this gradient: a fresh one begins at 0"),
        Column("optimizer", "text", "", "class of the optimizer that holds it; NULL if none does"),
        Column("param_group", "int", "", "number of its group there"),
        Column("lr", "float", "", "learning rate of the group; NULL while it is a tensor on a device"),
        Column("updates", "int", "", "updates by the optimizer's own count; NULL before the first, or if it has none"),
        Column("is_cleared", "bool", "", "zero_grad of its optimizer was called since the recorder started"),
        Column("steps_seen", "int", "", "steps since the recorder started"),
        Column("registered", "bool", "", "parameters() of the model yields it; false: in a list or dict of a module"),
    )


class Gradients(RecorderTable):
    name = "torch.gradients"
    doc = (
        "Norms of up to 64 gradients of the models reachable from the job's frames and globals, spread over the layers,"
        " read by the training thread at the end of the next steps, 1 ms a step; without a row if none ends in 1 s."
    )
    operation = "gradients"
    columns = (
        STEP,
        Column("place", "int", "", "order of the modules, from 0"),
        Column("num_places", "int", "", "gradients that were chosen"),
        Column("module", "text", "", "path of the module: GPT.blocks.0.attn"),
        Column("parameter", "text", "", "name of the parameter: weight"),
        Column("dtype", "text", "", "type of the gradient: bfloat16"),
        Column("shape", "text", "", "its shape: 64x64"),
        Column("values", "int", "", "number of its elements"),
        Column("zeros", "int", "", "elements of the gradient that are zero"),
        Column("norm", "float", "", "2-norm of the gradient"),
        Column("biggest", "float", "", "largest absolute value"),
        Column("weight_norm", "float", "", "2-norm of the parameter, if its type has 16 bits; NULL for others"),
        Column("read_step", "int", "", "step at whose end it was read"),
    )


class LossGraphs(RecorderTable):
    name = "torch.autograd_graph"
    doc = (
        "The operations that the losses of the next step are made of, up to 60 of each of four, those nearest to the"
        " loss first, noted by the training thread before backward; without a row if none begins in 1 s."
    )
    operation = "loss_graph"
    columns = (
        STEP,
        Column("backward_call", "int", "", "number of the call of backward, from 0"),
        Column("number", "int", "", "number of the operation; 0 makes the loss"),
        Column("user", "int", "", "number of the operation that takes its output; NULL of the loss"),
        Column("operand", "int", "", "as which of its operands, from 0"),
        Column("operation", "text", "", "name that torch's autograd has for it: NllLoss, LogSoftmax, Addmm"),
        Column("shape", "text", "", "shape of its output: 32x10; empty of a scalar"),
        Column("operands", "int", "", "number of its operands"),
        Column("constants", "int", "", "of these, those without a gradient"),
        Column("dim", "int", "", "dimension that adds up to 1 after a softmax, from 0; NULL of others"),
        Column("divisor", "float", "", "number that a Div divides by; NULL if there are several, or on a device"),
        Column(
            "plain_grads",
            "int",
            "",
            "calls of torch.autograd.grad without create_graph since the backward before; the same for all of a loss",
        ),
    )


class Attentions(RecorderTable):
    name = "torch.attentions"
    doc = (
        "The attentions of the next losses, torch's own and softmaxes of a product, and whether they see later"
        " positions, noted from the graph by the training thread before backward (2 µs a node, at most 4,000);"
        " without a row if none begins in 1 s. What was compiled, and what a CUDA device has masked, is not seen."
    )
    operation = "attentions"
    columns = (
        STEP,
        Column("backward_call", "int", "", "number of the call of backward, from 0"),
        Column("operation", "text", "", "ScaledDotProductFlashAttentionForCpu, Softmax"),
        Column("queries", "int", "", "positions of the queries"),
        Column("keys", "int", "", "positions of the keys"),
        Column("sees_later", "bool", "", "whether the first position sees the last; NULL if that is not known"),
        Column("tokens", "text", "", "shape of the tokens that an embedding was given for the loss: 8x128; else NULL"),
        Column(
            "next_tokens",
            "float",
            "",
            "part of the loss's targets that are the token after, in the first 8 texts; NULL if they were not read",
        ),
    )


class Arguments(RecorderTable):
    name = "torch.arguments"
    doc = (
        "What the models and loss modules are called with in the next six steps, and what they return, and the batches"
        " that DataLoaders give meanwhile: one row per tensor. Some values are copied by the training thread, at most 8"
        " rows of 512, of those on a CPU; without a row if no step ends in 1.5 s. Ranks begin at a common step."
    )
    operation = "arguments"
    columns = (
        STEP,
        Column("call", "int", "", "number of the call or batch, from 1"),
        Column("module", "text", "", "class of the outermost module, inside of DDP or an adapter; NULL for a batch"),
        Column("library", "text", "", "package that defines the class: torch, transformers, __main__"),
        Column("name", "text", "", "name of the argument, key of the batch, or its position: labels, [1]; output"),
        Column("shape", "text", "", "its shape: 32x512"),
        Column("dtype", "text", "", "its type"),
        Column("device", "text", "", "its device"),
        Column("read", "int", "", "number of values read, on which the rest is based; 0 on a device"),
        Column("low", "float", "", "lowest value"),
        Column("high", "float", "", "highest value"),
        Column("mean", "float", "", "mean of the values"),
        Column("distinct", "int", "", "number of different values"),
        Column("common", "float", "", "part of the values that are the most common one"),
        Column("ignored", "float", "", "part of the integers that are -100, which losses ignore"),
        Column("same_as_first", "float", "", "part that is that of the first tensor of tokens of the call"),
        Column(
            "next_of_first", "float", "", "part that is that of the next position there: targets of a language model"
        ),
        Column(
            "end_ignored",
            "float",
            "",
            "part of the rows whose last value that attention_mask keeps is -100, and hardly any other of these",
        ),
        Column(
            "varies", "float", "", "part of the standard deviation that is between samples: 0 where all rows are alike"
        ),
        Column("checksum", "int", "", "checksum of the values that were read; NULL if none were"),
    )


class Evaluations(RecorderTable):
    name = "torch.evaluations"
    doc = (
        "How the training thread has evaluated the job's models since the recorder started: one row per model that was"
        " called as the outermost one in a block without gradients, or in evaluation mode with gradients."
    )
    operation = "evaluations"
    columns = (
        STEP,
        Column("module", "text", "", "class of the model"),
        Column("without_gradients", "int", "", "blocks without gradients (no_grad, inference_mode) that call it"),
        Column("active", "int", "", "of these, those with a layer of dropout or batch norm in training mode"),
        Column(
            "with_gradients",
            "int",
            "",
            "times that it was called with gradients after model.eval(), and was in training mode again at the next"
            " backward: the graph was made for nothing",
        ),
        Column("trainable", "bool", "", "some of its parameters ask for a gradient now"),
    )


class KeptWeights(RecorderTable):
    name = "torch.kept_weights"
    doc = (
        "The dicts and lists of tensors reachable from the job's frames and globals, such as a state_dict, and further"
        " names of a model, with the tensors that are parameters of a model themselves, no copies. Of each, 100 tensors"
        " are looked at, when the query runs."
    )
    operation = "kept_weights"
    columns = (
        STEP,
        Column("place", "text", "", "where it was found"),
        Column("module", "text", "", "the model, as in torch.modules, whose parameters are among them; NULL if none"),
        Column("tensors", "int", "", "tensors in it"),
        Column("shared", "int", "", "those that are parameters of the model and change as it is trained"),
        Column(
            "size", "float", "MiB", "size of the tensors; NULL for a further name of a model, which takes no memory"
        ),
    )


class Schedulers(RecorderTable):
    name = "torch.schedulers"
    doc = "The learning rate schedulers reachable from the job's frames and globals, when the query runs."
    operation = "schedulers"
    columns = (
        STEP,
        Column("scheduler", "text", "", "its class"),
        Column("place", "text", "", "where it was found"),
        Column("optimizer", "text", "", "class of its optimizer"),
        Column("calls", "int", "", "calls of step() so far"),
        Column("updates", "int", "", "updates by the optimizer's own count; NULL if it has none"),
        Column("steps_seen", "int", "", "steps since the recorder started"),
        Column("batches", "int", "", "batches that the newest pass over a DataLoader has given; NULL without one"),
        Column("lr", "float", "", "learning rate of the first group that it has set last"),
        Column("base_lr", "float", "", "learning rate of the first group that it began with"),
        Column("total", "float", "", "its total_steps, T_max or total_iters; NULL if it has none"),
    )


class Tensors(RecorderTable):
    name = "torch.tensors"
    doc = (
        "Memory of the parameters, gradients, optimizer state and buffers of the models and optimizers reachable from"
        " the job's frames and globals, when the query runs; a tensor that several of them share counts once."
    )
    operation = "tensor_memory"
    columns = (
        STEP,
        Column("kind", "text", "", "parameters, gradients, optimizer state or buffers"),
        Column("device", "text", "", "where they are: cpu, cuda:0"),
        Column("num_tensors", "int", "", "tensors of this kind; NULL of gradients if no step has ended to read them"),
        Column("memory", "float", "MiB", "their size, NULL likewise; if sharded, the part in this process"),
        Column("full", "float", "MiB", "of gradients, their size when every parameter has one; otherwise memory"),
    )


class DataLoaders(RecorderTable):
    name = "torch.dataloaders"
    doc = "The DataLoaders reachable from the job's frames and globals, read when the query runs."
    operation = "dataloaders"
    columns = (
        STEP,
        Column("loader", "text", "", "its class"),
        Column("place", "text", "", "where it was found; without a name (for x in DataLoader(…)) by its newest batch"),
        Column("dataset", "text", "", "class of the dataset"),
        Column("batch_size", "int", "", "samples per batch; NULL if the sampler decides"),
        Column("num_workers", "int", "", "worker processes it starts; 0: batches are made on the training thread"),
        Column("workers", "int", "", "processes it has now; known only with persistent workers"),
        Column("prefetch_factor", "int", "", "batches that each worker prefetches"),
        Column("pin_memory", "bool", "", "batches are copied to pinned memory"),
        Column("persistent_workers", "bool", "", "the workers live on after an epoch"),
        Column("drop_last", "bool", "", "an incomplete last batch is left out"),
        Column("in_order", "bool", "", "batches come in order; NULL before torch 2.6"),
        Column("timeout", "float", "s", "how long it waits for a batch; 0: no limit"),
        Column("sampler", "text", "", "class of the sampler, or of the batch sampler that takes its place"),
        Column("collate_fn", "text", "", "function that makes a batch of samples"),
        Column("worker_init_fn", "text", "", "function that each worker calls first"),
        Column("start_method", "text", "", "fork, spawn or forkserver, if it was set"),
        Column("samples", "int", "", "length of a dataset that is a list or a TensorDataset"),
        Column("sampler_shuffles", "bool", "", "shuffle of a sampler that has it: DistributedSampler"),
        Column("sampler_epoch", "int", "", "epoch that its set_epoch was told last: 0 if it was never called"),
        Column("sampler_replicas", "int", "", "num_replicas of a sampler that has it: parts that the data is cut into"),
        Column("sampler_rank", "int", "", "rank of a sampler that has it: the part that this loader gives"),
        Column("sampler_weights", "int", "", "number of weights of a WeightedRandomSampler, one for each sample"),
        Column("sampler_draws", "int", "", "samples that it draws in a pass"),
        Column("passes", "int", "", "passes over it that the training thread has begun since the recorder started"),
        Column("whole_passes", "int", "", "of these, those that came to the end of the data"),
        Column("batches", "int", "", "batches with samples that they gave; NULL while a pass of before goes on"),
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
        Column("group_desc", "text", "", "the job's description of it"),
        Column("backend", "text", "", "gloo or nccl"),
        Column("group_rank", "int", "", "the target's rank in the group"),
        Column("size", "int", "", "number of ranks in the group"),
        Column("ranks", "text", "", "these ranks, by their number in the job"),
        Column("last_enqueued", "int", "", "number of the last collective that was called; NULL before the first"),
        Column("last_started", "int", "", "of the last that had started; NULL on gloo, which does not report it"),
        Column("last_completed", "int", "", "of the last that was complete"),
        Column("last_op", "text", "", "the last call"),
        Column("last_state", "text", "", "its state: scheduled, started, completed or failed"),
        Column("last_ts", "time", "UTC", "when it was called"),
    )


class FlightRecorder(RecorderTable):
    name = "torch.flight_recorder"
    doc = (
        "The collectives that torch's Flight Recorder has kept (2,000 unless the job sets TORCH_FR_BUFFER_SIZE), when"
        " the query runs; it answers while the job hangs in one of them. Sends and receives on gloo are not kept."
    )
    operation = "flight_recorder"
    columns = (
        STEP,
        Column("ts", "time", "UTC", "when it was called"),
        Column("group", "text", "", "name of its process group"),
        Column("group_desc", "text", "", "the job's description of the group"),
        Column(
            "seq", "int", "", "its number in the group, the same on all ranks; for a send or receive a separate count"
        ),
        Column("op", "text", "", "its name in the backend"),
        Column(
            "state",
            "text",
            "",
            "scheduled, started, completed or failed; on gloo completed may mean failed, and started is not reported",
        ),
        Column("age", "float", "s", "time since the call"),
        Column("duration", "float", "s", "on the device; NULL unless the job sets TORCH_NCCL_ENABLE_TIMING"),
        Column("bytes", "int", "bytes", "size of this rank's input"),
        Column("dtype", "text", "", "type of its first tensor"),
        Column("shape", "text", "", "shape of the first; +2 means two more"),
        Column("is_p2p", "bool", "", "a send or a receive"),
        Column("backend", "text", "", "gloo or nccl"),
        Column("started", "time", "UTC", "when torch noticed its start; NULL on gloo"),
        Column("completed", "time", "UTC", "when torch noticed its completion; NULL on gloo"),
        Column("timeout", "float", "s", "timeout of the group"),
        Column("thread", "text", "", "name of the thread that called it"),
    )


class MemoryBlocks(RecorderTable):
    name = "torch.memory_blocks"
    doc = (
        "Blocks of torch's CUDA allocator that are in use, by the line that made them, when the query runs; switch"
        " lines on with the setting memory.history. An error where no CUDA device is used."
    )
    operation = "memory_blocks"
    columns = (
        STEP,
        Column("device", "text", "", "its name in torch in this process: cuda:0"),
        Column("func", "text", "", "function of the line; NULL for blocks allocated before memory.history was on"),
        Column("file", "text", "", "its file, as the target has it"),
        Column("lineno", "int", "", "the line: the innermost that is not in torch"),
        Column("num_blocks", "int", "", "its blocks in use"),
        Column("size", "float", "MiB", "their size"),
        Column("requested", "float", "MiB", "requested size, before rounding up"),
        Column("largest", "float", "MiB", "the largest of them"),
    )
