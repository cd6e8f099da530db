"""Entries of torch's Flight Recorder for the collectives of this process, with missing fields repaired.

gloo leaves the state of its entries at `scheduled` and the names in `pg_config` empty. `retired` shows that an entry is
over, `pg_status` the progress of a group; names and ranks of groups are in torch.distributed's own `_world`.

Runs on threads of the recorder. The status alone takes 4 µs; a whole dump takes 14 µs per entry under the GIL (25 to
35 ms for the 2,000 that torch keeps), so it is taken on request, or rarely.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from functools import partial
from time import time_ns
from typing import Any, cast

from . import loaded
from .captures import allow_captures_elsewhere

__all__ = ["Dump", "describe", "dumps", "groups", "ranks_text", "shape_text", "why_empty"]

#: Flight Recorder's name of a dtype -> torch's name and its size in bytes.
_DTYPES = {
    "Float": ("float32", 4),
    "Double": ("float64", 8),
    "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2),
    "Byte": ("uint8", 1),
    "Char": ("int8", 1),
    "Short": ("int16", 2),
    "Int": ("int32", 4),
    "Long": ("int64", 8),
    "Bool": ("bool", 1),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
    "Float8_e4m3fn": ("float8_e4m3fn", 1),
    "Float8_e5m2": ("float8_e5m2", 1),
}
_READERS = ("_dump_fr_trace", "_dump_nccl_trace")

Dump = dict[str, Any]  # what torch gave, unpickled: untyped by nature


def dumps(*, with_entries: bool) -> Iterator[Dump]:
    """Yield the dump of each of torch's recorders: gloo's, in a CUDA build NCCL's; none without torch.distributed."""
    c10d: Any = loaded("torch._C._distributed_c10d")
    allow_captures_elsewhere()  # of an NCCL call that is not over, it queries the events
    for name in _READERS:
        read = getattr(c10d, name, None)
        if read is not None:
            yield _unpickled(read(with_entries, False, False))


def _unpickled(data: bytes) -> Dump:
    """Return the dump, about 20,000 containers, without the garbage collector.

    Before Python 3.12 that would run 28 times meanwhile, and keep the containers for so long that after some dumps it
    would look at all objects of the job, which stands still for that: 0.15 to 0.35 s with torch loaded.
    """
    pickle: Any = loaded("pickle")  # by torch: to import it puts modules into `sys.modules` for a moment
    load = partial(pickle.loads, data)
    if not gc.isenabled():
        return cast(Dump, load())
    try:
        # One chain of calls in C: no other thread runs meanwhile, so that none finds the collector switched off.
        _, dump, _ = map(partial.__call__, (partial(gc.disable), load, partial(gc.enable)))
    except BaseException:
        gc.enable()
        raise
    return cast(Dump, dump)


def groups() -> list[dict[str, Any]]:
    """Return the existing process groups of torch.distributed."""
    c10d: Any = loaded("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    if world is None:
        return []
    found = []
    for group, name in list(world.pg_names.items()):
        ranks = sorted(world.pg_group_ranks.get(group, ()))
        found.append(
            {
                "group": str(name),
                "group_desc": str(getattr(group, "group_desc", "")),
                "backend": str(world.pg_map.get(group, ("",))[0]),
                "ranks": ranks,
                "group_rank": group.rank(),
            }
        )
    return found


def describe(entry: dict[str, Any]) -> dict[str, Any]:
    """Return one entry of a dump, repaired; times in microseconds since 1970, durations in seconds."""
    backend, _, op = str(entry["profiling_name"]).rpartition(":")
    op = op.lstrip("_")
    group, group_desc = entry["process_group"]
    is_p2p = bool(entry.get("is_p2p"))
    sizes, dtypes = entry["input_sizes"], entry["input_dtypes"]
    if not sizes or op in ("recv", "recvAnySource"):
        sizes, dtypes = entry["output_sizes"], entry["output_dtypes"]
    duration_ms = entry.get("duration_ms")
    return {
        "group": group,
        "group_desc": group_desc,
        "backend": backend,
        "seq": int(entry["p2p_seq_id" if is_p2p else "collective_seq_id"]),
        "op_id": int(entry["op_id"]),
        "op": op,
        "is_p2p": is_p2p,
        "state": _state(entry),
        "bytes": sum(_num_elements(size) * _DTYPES.get(dtype, ("", 0))[1] for size, dtype in zip(sizes, dtypes)),
        "dtype": _DTYPES.get(dtypes[0], (dtypes[0], 0))[0] if dtypes else None,
        "shape": shape_text(sizes[0], len(sizes)) if sizes else None,
        "ts": entry["time_created_ns"] // 1000,
        "age": (time_ns() - entry["time_created_ns"]) * 1e-9,
        "started": _microseconds(entry.get("time_discovered_started_ns")),
        "completed": _microseconds(entry.get("time_discovered_completed_ns")),
        "duration": None if duration_ms is None else duration_ms * 1e-3,
        "timeout": entry.get("timeout_ms", 0) * 1e-3,
        "thread": entry.get("thread_name"),
    }


def shape_text(shape: Any, num_tensors: int) -> str:
    """Return the shape of a tensor, or of the first of several, as text."""
    text = str(list(shape))
    return text if num_tensors == 1 else f"{text} +{num_tensors - 1}"


def ranks_text(ranks: list[int]) -> str:
    """Return a list of ranks as short text: 0-7, 0-14:2 for every second one, or 0, 3, 5."""
    step = ranks[1] - ranks[0] if len(ranks) > 2 else 0
    if step > 0 and ranks == list(range(ranks[0], ranks[-1] + 1, step)):
        return f"{ranks[0]}-{ranks[-1]}" + (f":{step}" if step > 1 else "")
    return ", ".join(map(str, ranks))


def why_empty() -> str:
    """Return why there are no entries."""
    if not groups():
        return "torch.distributed has no process group in this process"
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        if os.environ.get(name) == "0":
            return f"the job has disabled Flight Recorder: {name}=0"
    return "Flight Recorder has no entries yet, or this torch does not record the backend"


def _state(entry: dict[str, Any]) -> str:
    """Return scheduled, started, completed or failed. A retired entry is over; gloo does not say whether it failed."""
    state = str(entry["state"])
    if state == "completed" or not entry.get("retired"):
        return state
    return "completed" if str(entry["profiling_name"]).startswith("gloo:") else "failed"


def _num_elements(size: Any) -> int:
    count = 1
    for length in size:
        count *= length
    return count


def _microseconds(ns: int | None) -> int | None:
    return ns // 1000 if ns else None
