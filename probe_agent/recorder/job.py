"""The job that this process is a rank of: rank and world size, and where its ranks meet.

Runs on threads of ours, on every tick: a few attributes of torch.distributed and three variables of the environment
are read, 5 µs. No collective is called.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from .peers import Job
from .source import loaded

__all__ = ["meeting_place", "number_in", "rank_and_size", "the_job"]

#: The arguments of a process that multiprocessing has started, by `spawn` or its fork server.
_OF_MULTIPROCESSING = ("from multiprocessing.", "--multiprocessing-fork")


def rank_and_size() -> tuple[int | None, int]:
    """Rank and world size: of torch.distributed's process group, else as a launcher says in the environment.

    (None, 1) where they are not known yet: a child of multiprocessing has no rank until it joins a process group. Any
    other process that says nothing is (0, 1), a job of its own.
    """
    _, group = _world()
    if group is not None:
        return int(group.rank()), int(group.size())
    rank, world_size = number_in("RANK", -1), number_in("WORLD_SIZE", -1)
    if rank >= 0 and world_size > 0:
        return rank, world_size
    return (None if _is_child_of_multiprocessing() else 0), 1


def meeting_place() -> str:
    """Where the ranks of this job meet, in the same words on all of its ranks on this host; empty until it is known."""
    world, group = _world()
    store = _store(world, group) if group is not None else None
    if store is None:
        address, port = (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
        return f"{address}:{port}" if address and port and "RANK" in os.environ else ""
    if type(store).__name__ == "TCPStore":
        return f"{store.host}:{store.port}"
    return str(getattr(store, "path", ""))


def number_in(variable: str, default: int) -> int:
    """What a launcher has said in the environment, or the default where it has said nothing of use."""
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default


def _is_child_of_multiprocessing() -> bool:
    process = sys.modules.get("multiprocessing.process")
    if getattr(process, "_parent_process", None) is not None:
        return True
    return any(word.startswith(_OF_MULTIPROCESSING) for word in _arguments())


def _arguments() -> list[str]:
    return getattr(sys, "orig_argv", [])[1:]  # since Python 3.10


def _world() -> tuple[Any, Any]:
    """torch.distributed's own record of its groups and its default group; None where there is none."""
    c10d = loaded("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    return world, getattr(world, "default_pg", None)


def _store(world: Any, group: Any) -> Any:
    """The store that a group was made with, without its prefixes."""
    store = world.pg_map.get(group, (None, None))[1]
    while hasattr(store, "underlying_store"):  # PrefixStores
        store = store.underlying_store
    return store


def the_job() -> Job | str:
    """What torch.distributed says, or why the ranks of this process's job cannot be found through it."""
    world, group = _world()
    if group is None:
        return "torch.distributed has no process group in this process"
    store = _store(world, group)
    if type(store).__name__ != "TCPStore":
        return f"the ranks of this job meet in a {type(store).__name__}; only a TCPStore can be asked from here"
    return Job(str(store.host), int(store.port), int(group.rank()), int(group.size()))
