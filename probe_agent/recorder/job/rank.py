"""Rank and world size of this process, the store of its job, and the job's name.

Runs on threads of the recorder, on every tick: it reads a few attributes of torch.distributed and three environment
variables, 5 µs. No collective is called.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import Any

from ..torch import loaded
from .peers import Job
from .variables import rank_in

__all__ = [
    "meeting_place",
    "name_by_store",
    "name_of",
    "name_without_store",
    "number_in",
    "rank_and_size",
    "the_job",
]

#: Arguments of a process started by multiprocessing's `spawn` or its fork server.
_OF_MULTIPROCESSING = ("from multiprocessing.", "--multiprocessing-fork")


def rank_and_size() -> tuple[int | None, int]:
    """Return rank and world size of torch.distributed's process group, otherwise from the launcher's environment.

    (None, 1) if unknown: a child of multiprocessing has no rank until it joins a process group. Any other process
    without a rank is (0, 1), a job of its own.
    """
    _, group = _world()
    if group is not None:
        return int(group.rank()), int(group.size())
    if told := rank_in(os.environ):
        return told
    return (None if _is_child_of_multiprocessing() else 0), 1


def meeting_place() -> str:
    """Return the address or path of the job's store, the same text on all its ranks on this host; empty until known."""
    world, group = _world()
    store = _store(world, group) if group is not None else None
    if store is None:
        address, port = (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
        return f"{address}:{port}" if address and port and "RANK" in os.environ else ""
    if type(store).__name__ == "TCPStore":
        return f"{store.host}:{store.port}"
    return str(getattr(store, "path", ""))


def name_of(*facts: object) -> str:
    """Return a job name made of these facts: six letters, so that it cannot be taken for a number."""
    number, letters = 0xCBF29CE484222325, ""
    for byte in "\n".join(map(str, facts)).encode():  # FNV-1a: any hash that imports nothing into the target
        number = (number ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    for _ in range(6):
        number, letter = divmod(number, 26)
        letters += chr(ord("a") + letter)
    return letters


def name_by_store(oldest_line: str) -> str:
    """Return the job's name from the first line in its store: the same on all hosts, and another one for the next job
    at the same address."""
    return name_of(oldest_line, os.environ.get("TORCHELASTIC_RUN_ID", ""))


def name_without_store() -> str:
    """Return the job's name from the address of its store, if there is no TCPStore or it does not answer. Empty without
    a process group, since a store may come with the group."""
    _, group = _world()
    if group is None:
        return ""
    place = meeting_place()
    address = place.rpartition(":")[0]
    host = os.uname().nodename if address.startswith("127.") or address in ("localhost", "::1") else ""
    return name_of(place, host, os.environ.get("TORCHELASTIC_RUN_ID", ""), group.size())


def number_in(variable: str, default: int) -> int:
    """Return an environment variable of a launcher as a number, or the default if it is not a valid one."""
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
    """Return torch.distributed's own record of its groups and its default group; None if there is none."""
    c10d = loaded("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    return world, getattr(world, "default_pg", None)


def _store(world: Any, group: Any) -> Any:
    """Return the store of a group without its prefixes."""
    store = world.pg_map.get(group, (None, None))[1]
    while hasattr(store, "underlying_store"):  # PrefixStores
        store = store.underlying_store
    return store


def the_job() -> Job | str:
    """Return the job from torch.distributed, or from torchrun before there is a process group; otherwise why its ranks
    cannot be found."""
    world, group = _world()
    if group is None:
        return _of_torchrun() or "torch.distributed has no process group in this process"
    store = _store(world, group)
    if type(store).__name__ != "TCPStore":
        return f"the job's store is a {type(store).__name__}; ranks can be found only through a TCPStore"
    return Job(str(store.host), int(store.port), int(group.rank()), int(group.size()))


def _of_torchrun() -> Job | None:
    """Return the job from torchrun's environment: its agent runs the store, other launchers leave that to rank 0."""
    rank, world_size, port = (number_in(name, -1) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    host = os.environ.get("MASTER_ADDR", "")
    has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not has_store or not host or not 0 <= rank < world_size or port < 1 or not _is_child_of_agent(os.getppid()):
        return None
    return Job(host, port, rank, world_size)


@lru_cache(maxsize=1)
def _is_child_of_agent(parent_pid: int) -> bool:
    """Return whether torchrun itself started this process: children of a rank inherit the rank's environment."""
    try:
        with open(f"/proc/{parent_pid}/environ", "rb") as file:
            return not any(entry.startswith(b"TORCHELASTIC_RUN_ID=") for entry in file.read().split(b"\0"))
    except OSError:
        return False
