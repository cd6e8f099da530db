"""The training processes that a launcher has started: torchrun, accelerate, deepspeed, mpirun, a shell script, or a
script that waits in `mp.spawn`.

Runs beside them, out of /proc alone: 3 ms for 100 processes. Whether a script only waits for the processes that it has
spawned is read from outside, 30 to 130 ms, and only where it has such children.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from probe_agent.activate.selection import is_launcher, is_tool, program_of
from probe_agent.errors import NoAnswer
from probe_agent.procfs import Process, all_processes, read_process

__all__ = ["launched_by"]

Children = Mapping[int, Sequence[Process]]

#: What torch calls a loader worker's main thread, since torch 2.6.
_LOADER = "pt_data_worker"
#: Where a script waits for the processes that it has spawned.
_WAITS_IN = (("torch/multiprocessing/spawn.py", "join"), ("multiprocessing/process.py", "join"))


def launched_by(pid: int) -> tuple[str, list[Process]] | None:
    """What kind of launcher process `pid` is, and the training processes it has started by now, oldest first. None when
    it is no launcher."""
    process = read_process(pid)
    if process is None or not process.is_alive:
        return None
    found = sorted(all_processes(), key=lambda one: (one.parent_pid, one.start_ticks))
    children = {parent: list(group) for parent, group in groupby(found, key=lambda one: one.parent_pid)}
    try:
        kind = _kind(process)
        started = [*_programs_below(pid, children)] if kind else _spawned(process, children)
    except OSError:
        return None  # ended meanwhile, or somebody else's
    if not kind:
        return ("mp.spawn", started) if started else None
    # Beside the training there may be other programs; torch tells them apart, once it is loaded.
    with_torch = [one for one in started if _has_torch(one)]
    if process.is_python or with_torch:
        return kind, with_torch or started
    return None


def _kind(process: Process) -> str:
    """The name of a launcher; empty for a Python program that is none."""
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
            continue  # ended meanwhile


def _spawned(process: Process, children: Children) -> list[Process]:
    """The children that a script has started by multiprocessing to train, while it only waits for them."""
    command = process.command
    found = [child for child in children.get(process.pid, ()) if _may_train(child, command)]
    return found if found and _only_waits(process) else []


def _may_train(child: Process, of: tuple[str, ...]) -> bool:
    try:
        with open(child.proc + "/comm") as file:
            is_loader = file.read().strip() == _LOADER
        kind, program = program_of(child.command)
        is_copy = child.command == of or (kind == "code" and program.startswith("from multiprocessing.spawn "))
        return child.is_alive and is_copy and not is_loader and _has_torch(child)
    except OSError:
        return False


def _has_torch(process: Process) -> bool:
    try:
        with open(process.proc + "/maps", "rb") as file:
            return any(b"libtorch" in line for line in file)
    except OSError:
        return False


def _only_waits(process: Process) -> bool:
    from probe_agent import inject  # a door: only where a script has spawned processes

    try:
        threads = inject.read_stacks(process.pid)
    except NoAnswer:
        return False
    calls = [(frame.file, frame.func) for thread in threads if thread.is_main for frame in thread.frames]
    return any(at.endswith(file) and name.rpartition(".")[2] == func for at, name in calls for file, func in _WAITS_IN)
