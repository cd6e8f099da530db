"""Processes of a job that were named only through another one: what a launcher has started, and a rank's siblings.

A PID of a launcher stands for the training processes it has started. A PID of a rank, with --all, stands for its job:
its ranks on this host may have no recorder yet.

Runs in the CLI on its event loop. Costs one question to the host server: for a process that has children, and where the
ranks of a PID's job are not known.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from probe_agent.errors import AttachRefused, NoAnswer
from probe_agent.wire import Launched, LaunchedList, SiblingList
from probe_cli.client import open_host
from probe_cli.endpoint import LocalProcess

__all__ = ["Started", "Unprepared", "started_by", "unprepared"]

#: One line names at most this many processes.
MAX_NAMED = 16


class Started:
    """Training processes that a launcher has started, or that a target has, which is no `launcher`."""

    def __init__(self, pid: int, told: LaunchedList) -> None:
        self.pid = pid
        self.launcher = told.launcher
        self.processes = told.processes

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(one.pid for one in self.processes)

    @property
    def endpoints(self) -> tuple[LocalProcess, ...]:
        return tuple(LocalProcess(one.pid) for one in self.processes)

    def __str__(self) -> str:
        if not self.launcher:
            pids = ", ".join(f"pid {pid}" for pid in self.pids[:MAX_NAMED]) + (", …" if self.pids[MAX_NAMED:] else "")
            also = "which use torch too and are not asked" if self.pids[1:] else "which uses torch too and is not asked"
            return f"pid {self.pid} has started {pids}, {also}: probe {self.pids[0]} …"
        return f"pid {self.pid} is a launcher ({self.launcher}) and has started {_named(self.processes)}"


async def started_by(pid: int) -> Started | None:
    """Return the training processes that process `pid` has started; None if there are none. Raises NoAnswer for a
    launcher that has started none yet."""
    if not _has_children(pid):
        return None
    async with open_host() as client:
        told = await client.get(LaunchedList, "/v1/launched", pid=str(pid))
    if not told.launcher and not told.processes:
        return None
    if not told.processes:
        raise NoAnswer(
            f"pid {pid} is a launcher ({told.launcher}) and has started no training process yet",
            "wait until it has, or ask the launcher itself: --itself",
        )
    return Started(pid, told)


@dataclass(frozen=True)
class Unprepared:
    """Ranks of a job on this host that have no recorder, and what to type where the others are."""

    pid: int
    by: str
    processes: tuple[Launched, ...]
    launcher: str

    def __str__(self) -> str:
        others = _named(self.processes)
        return f"pid {self.pid} is a rank of a job, by {self.by}: attaching to its other ranks on this host: {others}"

    @property
    def elsewhere(self) -> str:
        """What to type on another host, so that the ranks there can be found through the job's store."""
        attach = f"probe $(pgrep -of {self.launcher}) inject" if self.launcher else "probe PID inject, for each of them"
        return f"on their hosts: {attach}; probe serve --listen HOST:PORT"

    def refusals(self) -> list[tuple[int, AttachRefused]]:
        """Why they are not asked, where nothing may be attached."""
        why = "has no recorder, and --no-inject forbids attaching one"
        return [
            (one.pid, AttachRefused(f"{_name(one)} {why}", f"attach to it: probe {one.pid} inject"))
            for one in self.processes
        ]


async def unprepared(pid: int, with_recorder: Collection[int], ranks: Collection[int]) -> Unprepared:
    """The ranks on this host (of `ranks` only these, when there are any) of the job that process `pid` is a rank of,
    without those whose PIDs are `with_recorder`."""
    async with open_host() as client:
        found = await client.get(SiblingList, "/v1/siblings", pid=str(pid))
    wanted = [one for one in found.processes if not ranks or one.rank is None or one.rank in ranks]
    without = tuple(one for one in wanted if one.pid not in with_recorder and one.pid != pid)
    return Unprepared(pid, found.by, without, found.launcher)


def _named(processes: tuple[Launched, ...]) -> str:
    return ", ".join(map(_name, processes[:MAX_NAMED])) + (", …" if len(processes) > MAX_NAMED else "")


def _name(one: Launched) -> str:
    return f"pid {one.pid} ({'rank not known yet' if one.rank is None else f'rank {one.rank}'})"


def _has_children(pid: int) -> bool:
    files = list(Path(f"/proc/{pid}/task").glob("*/children")) if Path(f"/proc/{pid}").exists() else []
    try:
        return any(file.read_bytes() for file in files)
    except OSError:
        return True  # a thread of it has just ended: let the server look
