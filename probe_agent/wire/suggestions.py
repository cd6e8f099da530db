"""Suggestions for a name that does not exist: the words of other tools first, then spelling, then parts of names.

A pure function over the known names; runs in the host server and in the CLI once a request has failed.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

__all__ = ["suggest", "suggest_column", "suggest_table"]

#: What users of other tools, and of their own logs, call a column of ours. The names that a table has count.
_COLUMN_WORDS: Mapping[str, tuple[str, ...]] = {
    "time": ("ts", "duration"),
    **dict.fromkeys(("timestamp", "datetime", "date", "when", "at", "wall_time", "end"), ("ts",)),
    **dict.fromkeys(
        ("elapsed", "took", "seconds", "secs", "ms", "latency", "runtime", "dur", "total_time", "step_time"),
        ("duration", "self_duration"),
    ),
    **dict.fromkeys(("self_time", "own_time"), ("self_duration",)),
    **dict.fromkeys(("cuda_time", "gpu_time", "device_time"), ("device_duration",)),
    "name": ("module", "func", "op", "optimizer", "expression", "thread", "kind"),
    **dict.fromkeys(("layer", "submodule", "path"), ("module", "file", "place")),
    **dict.fromkeys(("function", "method"), ("func",)),
    **dict.fromkeys(("line", "line_number", "line_no"), ("lineno",)),
    **dict.fromkeys(("filename", "file_name", "script"), ("file",)),
    **dict.fromkeys(("iteration", "iter", "it", "global_step", "step_number", "num_step"), ("step",)),
    **dict.fromkeys(("learning_rate", "learningrate"), ("lr",)),
    **dict.fromkeys(("memory", "mem", "gpu_memory", "vram", "mem_used"), ("allocated", "reserved", "memory", "rss")),
    **dict.fromkeys(("data", "data_time", "dataloader", "data_loading", "load_time", "wait"), ("data_wait", "wait")),
    **dict.fromkeys(("grad", "gradient", "gradients", "gradient_norm", "norm"), ("grad_norm",)),
    **dict.fromkeys(("phase", "direction", "pass"), ("stage",)),
    **dict.fromkeys(("bs", "samples", "num_samples"), ("batch_size",)),
    **dict.fromkeys(("hostname", "node", "machine"), ("host",)),
    **dict.fromkeys(("process", "process_id"), ("pid",)),
    **dict.fromkeys(("thread_id", "threadid"), ("tid",)),
    **dict.fromkeys(("shape", "shapes", "size"), ("input_shapes", "bytes", "parameters")),
}
_TABLE_WORDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("trace", "traces", "layers", "timings", "module"), ("python.torch_trace", "torch.modules")),
    **dict.fromkeys(("step", "iterations", "training", "losses", "metrics", "logs", "progress"), ("python.steps",)),
    **dict.fromkeys(("stack", "threads", "frames", "traceback"), ("python.backtrace", "python.stacks")),
    **dict.fromkeys(("gpu", "gpus", "nvidia", "nvidia_smi", "cuda", "device"), ("gpu.samples", "torch.memory")),
    **dict.fromkeys(("cpu", "rss", "process", "system", "io"), ("process.samples",)),
    **dict.fromkeys(("gc", "garbage", "collector"), ("python.gc",)),
    **dict.fromkeys(("env", "environ", "environment", "versions"), ("process.env",)),
    **dict.fromkeys(("nccl", "comms", "communication", "allreduce", "collective"), ("python.collectives",)),
    **dict.fromkeys(("profile", "profiler", "ops", "operators", "kernels"), ("python.profile_ops",)),
    **dict.fromkeys(("model", "models", "parameters", "weights"), ("torch.modules",)),
    **dict.fromkeys(("dataloader", "loader", "loaders"), ("torch.dataloaders", "python.workers")),
    **dict.fromkeys(("dynamo", "recompiles", "graph_breaks"), ("torch.compile",)),
    **dict.fromkeys(("variable", "vars", "watch"), ("python.variables",)),
}


def suggest(
    name: str, known: Collection[str], words: Mapping[str, tuple[str, ...]], limit: int = 3, cutoff: float = 0.6
) -> list[str]:
    """At most `limit` of the `known` names that `name` may stand for, the likeliest first."""
    asked = name.lower()
    by_lower = {one.lower(): one for one in known}
    return (
        [one for one in words.get(asked, ()) if one in known][:limit]
        or [by_lower[one] for one in difflib.get_close_matches(asked, by_lower, limit, cutoff)]
        or [one for lower, one in by_lower.items() if len(asked) > 2 and asked in lower][:limit]
    )


def suggest_column(name: str, columns: Collection[str]) -> list[str]:
    """The columns that `name` may stand for."""
    return suggest(name, columns, _COLUMN_WORDS)


def suggest_table(name: str, tables: Mapping[str, Collection[str]]) -> tuple[list[str], list[str]]:
    """The tables (with their columns) that `name` may stand for, and, if there are none, those with such a column."""
    schema, _, last = name.lower().rpartition(".")
    by_last: dict[str, list[str]] = {}
    for table in tables:
        by_last.setdefault(table.lower().rpartition(".")[2], []).append(table)
    siblings = [table for table in tables if schema and table.lower().startswith(f"{schema}.")]
    near = by_last.get(last) or suggest(name, siblings, {}, cutoff=0.8)
    near = near or [table for table in _TABLE_WORDS.get(last, ()) if table in tables]
    near = near or [table for one in suggest(last, by_last, {}) for table in by_last[one]]
    near = near or suggest(name, tables, {}, cutoff=0.7)
    return near, [] if near else [table for table, columns in tables.items() if last in columns]
