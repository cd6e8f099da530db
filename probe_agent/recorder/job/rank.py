"""The job that this process is a rank of: rank and world size, where its ranks meet, and its name.

Runs on threads of ours, on every tick: a few attributes of torch.distributed and three variables of the environment
are read, 5 µs. No collective is called.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import Any

from ..torch import loaded
from .peers import Job

__all__ = [
    "meeting_place",
    "name_by_store",
    "name_of",
    "name_without_store",
    "number_in",
    "rank_and_size",
    "the_job",
]

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


def name_of(*facts: object) -> str:
    """The name of the job that these facts tell from all others: six letters, so that nobody takes it for a number."""
    number, letters = 0xCBF29CE484222325, ""
    for byte in "\n".join(map(str, facts)).encode():  # FNV-1a: any hash that imports nothing into the target
        number = (number ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    for _ in range(6):
        number, letter = divmod(number, 26)
        letters += chr(ord("a") + letter)
    return letters


def name_by_store(oldest_line: str) -> str:
    """The name by what the first of its ranks has said in the job's store: the same on all hosts, and another one for
    the next job that meets at the same address."""
    return name_of(oldest_line, os.environ.get("TORCHELASTIC_RUN_ID", ""))


def name_without_store() -> str:
    """The name by where the ranks meet, when there is no TCPStore or none that answers. Empty before there is a process
    group: it may come with the group."""
    _, group = _world()
    if group is None:
        return ""
    place = meeting_place()
    address = place.rpartition(":")[0]
    host = os.uname().nodename if address.startswith("127.") or address in ("localhost", "::1") else ""
    return name_of(place, host, os.environ.get("TORCHELASTIC_RUN_ID", ""), group.size())


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
    """What torch.distributed says, or torchrun before there is a process group; or why the ranks of this process's job
    cannot be found."""
    world, group = _world()
    if group is None:
        return _of_torchrun() or "torch.distributed has no process group in this process"
    store = _store(world, group)
    if type(store).__name__ != "TCPStore":
        return f"the ranks of this job meet in a {type(store).__name__}; only a TCPStore can be asked from here"
    return Job(str(store.host), int(store.port), int(group.rank()), int(group.size()))


def _of_torchrun() -> Job | None:
    """As torchrun has told its ranks. Its agent has the store already; the store of others comes with their rank 0."""
    rank, world_size, port = (number_in(name, -1) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    host = os.environ.get("MASTER_ADDR", "")
    has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not has_store or not host or not 0 <= rank < world_size or port < 1 or not _is_child_of_agent(os.getppid()):
        return None
    return Job(host, port, rank, world_size)


@lru_cache(maxsize=1)
def _is_child_of_agent(parent_pid: int) -> bool:
    """Whether torchrun itself has started this process. What a rank starts inherits the rank's environment."""
    try:
        with open(f"/proc/{parent_pid}/environ", "rb") as file:
            return not any(entry.startswith(b"TORCHELASTIC_RUN_ID=") for entry in file.read().split(b"\0"))
    except OSError:
        return False
