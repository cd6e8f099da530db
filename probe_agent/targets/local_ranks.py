"""Training processes of a job on this host: those that a launcher has started, those beside a given rank.

A launcher is torchrun, accelerate, deepspeed, mpirun, a shell script, or a script that waits in `mp.spawn`. The ranks
need no recorder.

Runs beside them, out of /proc: 3 to 10 ms for 100 processes. Whether a script only waits for the processes that it has
spawned is read from its memory by py-spy, 30 to 130 ms, and only if it has such children.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from probe_agent import inject
from probe_agent.activate.selection import is_launcher, is_tool, program_of
from probe_agent.errors import NoAnswer
from probe_agent.procfs import Process, all_processes, read_process

from .workers import LOADER_NAME

__all__ = ["Siblings", "children_of", "launched_by", "siblings_of"]

Children = Mapping[int, Sequence[Process]]

#: Where a script waits for the processes that it has spawned.
_WAITS_IN = (("torch/multiprocessing/spawn.py", "join"), ("multiprocessing/process.py", "join"))
#: Variables that are the same for all ranks of a job, and for no other job that runs on this host at the same time.
_OF_JOB = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Siblings:
    """Ranks of one job on this host."""

    #: What they have in common.
    by: str
    #: Each with its rank, if its environment says it.
    ranks: tuple[tuple[int | None, Process], ...]
    #: The script or module of the launcher above them; empty if there is none that is known.
    launcher: str


def launched_by(pid: int) -> tuple[str, list[Process]] | None:
    """Return what kind of launcher process `pid` is, and the training processes that it has started, oldest first;
    None if it is no launcher."""
    process = read_process(pid)
    if process is None or not process.is_alive:
        return None
    found = sorted(all_processes(), key=lambda one: (one.parent_pid, one.start_ticks))
    children = {parent: list(group) for parent, group in groupby(found, key=lambda one: one.parent_pid)}
    try:
        kind = _kind(process)
        started = [*_programs_below(pid, children)] if kind else _spawned(process, children)
    except OSError:
        return None  # it has ended, or belongs to another user
    if not kind:
        return ("mp.spawn", started) if started else None
    # A launcher may start other programs too; those that have loaded torch are the training processes.
    with_torch = [one for one in started if _has_torch(one)]
    if process.is_python or with_torch:
        return kind, with_torch or started
    return None


def children_of(pid: int) -> list[Process]:
    """Return the processes with torch that a target has started by multiprocessing, oldest first, such as actors that
    generate for it; without workers of data loaders."""
    process = read_process(pid)
    if process is None or not process.is_alive:
        return []
    try:
        command = process.command
    except OSError:
        return []  # it has ended, or belongs to another user
    children = [one for one in all_processes() if one.parent_pid == pid and _may_train(one, command)]
    return sorted(children, key=lambda one: one.start_ticks)


def siblings_of(pid: int) -> Siblings | None:
    """Return the ranks on this host of the job that process `pid` is a rank of, itself among them; None if nothing
    says that it is a rank."""
    process = read_process(pid)
    if process is None or not process.is_alive:
        return None
    environment = _environment(process)
    if _rank(environment) is not None and environment.get("MASTER_PORT"):
        found = _with_same_store(process, environment)
        place = f"{environment.get('MASTER_ADDR', '')}:{environment['MASTER_PORT']}"
        return Siblings(f"the store {place}", tuple(found), _launcher_of(process))
    if (started_here := _started_by_first(process, environment)) is not None:
        return started_here
    launched = launched_by(process.parent_pid)
    if launched is None or pid not in [one.pid for one in launched[1]]:
        return None
    program = _program(process)
    spawned = tuple((None, one) for one in launched[1] if _program(one) == program)
    return Siblings(f"their parent, pid {process.parent_pid}", spawned, _launcher_of(process))


def _started_by_first(process: Process, environment: Mapping[str, str]) -> Siblings | None:
    """Return the ranks of a host whose first one has started the others as the same program again, with LOCAL_RANK and
    without RANK, as Lightning does."""
    parent = read_process(process.parent_pid) if _is_started_by_a_rank(environment) else None
    first = process if parent is None else parent
    later = list(_started_later(first))
    if not later:
        return None
    on_first_host = later[0][0].get("NODE_RANK", "0") == "0"
    ranks = [(0, first), *((int(variables["LOCAL_RANK"]), one) for variables, one in later)]
    told = tuple((rank if on_first_host else None, one) for rank, one in ranks)
    return Siblings(f"what pid {first.pid} has started", told, "")


def _started_later(first: Process) -> Iterator[tuple[Mapping[str, str], Process]]:
    """The ranks that the first one of a host has started, each with its variables."""
    program = _program(first)
    for one in all_processes():
        try:
            if one.parent_pid != first.pid or not one.is_alive or _program(one) != program or _is_loader(one):
                continue
        except OSError:
            continue  # it has ended, or belongs to another user
        if _is_started_by_a_rank(variables := _environment(one)):
            yield variables, one


def _is_started_by_a_rank(environment: Mapping[str, str]) -> bool:
    """Return whether these are the variables that Lightning gives; torchrun and others set RANK as well."""
    return (
        environment.get("LOCAL_RANK", "").isdecimal()
        and "RANK" not in environment
        and "MASTER_PORT" in environment
        and "WORLD_SIZE" in environment
    )


def _program(process: Process) -> str:
    """Return what it runs, the same for all ranks that one parent has started: without arguments and numbers, and with
    the folder of a script, which Lightning adds to the name that the first rank was started with."""
    try:
        command = process.command
        kind, program = program_of(command)
        if kind == "script":
            program = os.path.normpath(os.path.join(os.readlink(f"{process.proc}/cwd"), program))
    except OSError:
        return ""  # it has ended
    return _NUMBER.sub("", " ".join((*command[:1], kind, program)))


def _kind(process: Process) -> str:
    """Return the name of a launcher; empty for a Python program that is none."""
    command = process.command
    if not process.is_python:
        return os.path.basename(command[0]) if command else ""
    if not is_launcher(command):
        return ""
    return os.path.basename(program_of(command)[1])


def _programs_below(pid: int, children: Children) -> Iterator[Process]:
    """The nearest Python programs below `pid` that are neither launchers nor tools."""
    for child in children.get(pid, ()):
        try:
            if not child.is_alive:
                continue
            if not child.is_python or is_launcher(child.command):
                yield from _programs_below(child.pid, children)
            elif not is_tool(child.command):
                yield from _spawned(child, children) or [child]
        except OSError:
            continue  # it has ended, or belongs to another user


def _spawned(process: Process, children: Children) -> list[Process]:
    """Return the children that a script has started by multiprocessing to train, while it only waits for them."""
    command = process.command
    found = [child for child in children.get(process.pid, ()) if _may_train(child, command)]
    return found if found and _only_waits(process) else []


def _is_loader(process: Process) -> bool:
    """Return whether it is a worker of a data loader. Raises OSError if it has ended."""
    return process.read("comm").strip() == LOADER_NAME


def _may_train(child: Process, parent_command: tuple[str, ...]) -> bool:
    try:
        kind, program = program_of(child.command)
        is_copy = child.command == parent_command
        is_spawned = kind == "code" and program.startswith("from multiprocessing.spawn ")
        return child.is_alive and (is_copy or is_spawned) and not _is_loader(child) and _has_torch(child)
    except OSError:
        return False


def _has_torch(process: Process) -> bool:
    try:
        with open(f"{process.proc}/maps", "rb") as file:
            return any(b"libtorch" in line for line in file)
    except OSError:
        return False


def _only_waits(process: Process) -> bool:
    try:
        threads = inject.read_stacks(process.pid)
    except NoAnswer:
        return False
    calls = [(frame.file, frame.func) for thread in threads if thread.is_main for frame in thread.frames]
    return any(at.endswith(file) and name.rpartition(".")[2] == func for at, name in calls for file, func in _WAITS_IN)


def _with_same_store(process: Process, environment: Mapping[str, str]) -> list[tuple[int, Process]]:
    """Return the process of each rank, not one that it has started and that inherits its variables."""
    place = [environment.get(name) for name in _OF_JOB]
    alike: dict[int, tuple[int, Process]] = {}
    for other in all_processes():
        try:
            if not other.is_alive or other.uid != process.uid or not other.is_python:
                continue
            command, variables = other.command, _environment(other)
        except OSError:
            continue  # it has ended, or belongs to another user
        rank = _rank(variables)
        is_training = not is_launcher(command) and not is_tool(command)
        if rank is not None and is_training and [variables.get(name) for name in _OF_JOB] == place:
            alike[other.pid] = (rank, other)
    found: dict[int, Process] = {}
    for rank, other in sorted(alike.values(), key=lambda one: _unlike(one[1], process)):
        if other.parent_pid not in alike:
            found.setdefault(rank, other)
    return list(found.items())


def _unlike(other: Process, process: Process) -> tuple[bool, bool, int]:
    """Sort what is left of an earlier job at the same address last: it has another parent."""
    return other.pid != process.pid, other.parent_pid != process.parent_pid, other.start_ticks


def _environment(process: Process) -> dict[str, str]:
    """Return its variables; none if they cannot be read."""
    try:
        return process.environment
    except OSError:
        return {}


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
            return ""  # it belongs to another user
        above = read_process(above.parent_pid)
    return ""
