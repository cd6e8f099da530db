"""Which job this process is a rank of, as torch.distributed has it.

Runs on threads of ours: a few attributes are read, microseconds.
"""

from __future__ import annotations

from typing import Any

from .peers import Job
from .source import loaded

__all__ = ["the_job"]


def the_job() -> Job | str:
    """What torch.distributed says, or why the ranks of this process's job cannot be found through it."""
    c10d: Any = loaded("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    group = getattr(world, "default_pg", None)
    if world is None or group is None:
        return "torch.distributed has no process group in this process"
    store = world.pg_map.get(group, (None, None))[1]
    while hasattr(store, "underlying_store"):  # PrefixStores
        store = store.underlying_store
    if type(store).__name__ != "TCPStore":
        return f"the ranks of this job meet in a {type(store).__name__}; only a TCPStore can be asked from here"
    return Job(str(store.host), int(store.port), int(group.rank()), int(group.size()))
