"""The other ranks of a process's job on this host, whether or not they have a recorder.

Runs beside them, out of /proc alone: some 10 ms for 100 processes. A launcher says in their environment who they are;
those that a script has spawned have the same parent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from probe_agent.activate.selection import is_launcher, is_tool, program_of
from probe_agent.procfs import Process, all_processes, read_process

from .launched import launched_by

__all__ = ["Siblings", "siblings_of"]

#: The same for all ranks of a job, and for no other job of this host that runs at the same time.
_OF_JOB = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")


@dataclass(frozen=True)
class Siblings:
    """The ranks that were found, the one that was named among them."""

    #: What they have in common.
    by: str
    #: Each with its rank, as far as its environment says it.
    ranks: tuple[tuple[int | None, Process], ...]
    #: The script or module of the launcher above them; empty where there is none that is known.
    launcher: str


def siblings_of(pid: int) -> Siblings | None:
    """The ranks on this host of the job that process `pid` is a rank of; None where nothing says that it is one."""
    process = read_process(pid)
    if process is None or not process.is_alive:
        return None
    environment = _environment(process)
    if _rank(environment) is not None and environment.get("MASTER_PORT"):
        found = _with_same_store(process, environment)
        place = f"{environment.get('MASTER_ADDR', '')}:{environment['MASTER_PORT']}"
        return Siblings(f"the store {place}", tuple(found), _launcher_of(process))
    launched = launched_by(process.parent_pid)
    if launched is None or pid not in [one.pid for one in launched[1]]:
        return None
    spawned = tuple((None, one) for one in launched[1])
    return Siblings(f"their parent, pid {process.parent_pid}", spawned, _launcher_of(process))


def _with_same_store(process: Process, environment: Mapping[str, str]) -> list[tuple[int, Process]]:
    """Of each rank the process that is it, and not one that it has started and that has inherited its environment."""
    place = [environment.get(name) for name in _OF_JOB]
    alike: dict[int, tuple[int, Process]] = {}
    for other in all_processes():
        try:
            if not other.is_alive or other.uid != process.uid or not other.is_python:
                continue
            command, told = other.command, _environment(other)
        except OSError:
            continue  # ended meanwhile, or somebody else's
        rank = _rank(told)
        if rank is not None and [told.get(name) for name in _OF_JOB] == place and not _is_other(command):
            alike[other.pid] = (rank, other)
    found: dict[int, Process] = {}
    for rank, other in sorted(alike.values(), key=lambda one: _unlike(one[1], process)):
        if other.parent_pid not in alike:
            found.setdefault(rank, other)
    return list(found.items())


def _unlike(other: Process, process: Process) -> tuple[bool, bool, int]:
    """What is left of an earlier job at the same address is none of ours: it has another parent."""
    return other.pid != process.pid, other.parent_pid != process.parent_pid, other.start_ticks


def _is_other(command: tuple[str, ...]) -> bool:
    return is_launcher(command) or is_tool(command)


def _environment(process: Process) -> dict[str, str]:
    """As it was started; empty where it cannot be read."""
    try:
        with open(process.proc + "/environ", "rb") as file:
            entries = file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in entries)


def _rank(environment: Mapping[str, str]) -> int | None:
    rank, world_size = environment.get("RANK", ""), environment.get("WORLD_SIZE", "")
    return int(rank) if rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size) else None


def _launcher_of(process: Process) -> str:
    above = read_process(process.parent_pid)
    while above is not None and above.pid > 1:
        try:
            if is_launcher(above.command):
                return os.path.basename(program_of(above.command)[1])
        except OSError:
            return ""  # somebody else's
        above = read_process(above.parent_pid)
    return ""
