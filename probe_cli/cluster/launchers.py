"""A PID that is a launcher's stands for the training processes it has started.

Runs in the CLI on its event loop. Costs one question to the host server, for a process that has children.
"""

from __future__ import annotations

from pathlib import Path

from probe_agent.errors import NoAnswer
from probe_agent.wire import Launched, LaunchedList
from probe_cli.client import open_host
from probe_cli.endpoint import LocalProcess

__all__ = ["Led", "started_by"]


class Led:
    """What a launcher has started."""

    def __init__(self, pid: int, told: LaunchedList) -> None:
        self.pid = pid
        self.launcher = told.launcher
        self.processes = told.processes

    @property
    def endpoints(self) -> tuple[LocalProcess, ...]:
        return tuple(LocalProcess(one.pid) for one in self.processes)

    def __str__(self) -> str:
        named = ", ".join(map(_named, self.processes[:16])) + (", …" if len(self.processes) > 16 else "")
        return f"pid {self.pid} is a launcher ({self.launcher}) and has started {named}"


async def started_by(pid: int) -> Led | None:
    """What process `pid` has started, if it is a launcher. Raises NoAnswer when that is nothing yet."""
    if not _has_children(pid):
        return None
    async with open_host() as client:
        told = await client.get(LaunchedList, "/v1/launched", pid=str(pid))
    if not told.launcher:
        return None
    if not told.processes:
        raise NoAnswer(
            f"pid {pid} is a launcher ({told.launcher}) and has started no training process yet",
            "wait until it has, or ask the launcher itself: --itself",
        )
    return Led(pid, told)


def _named(one: Launched) -> str:
    return f"pid {one.pid} ({'rank not known yet' if one.rank is None else f'rank {one.rank}'})"


def _has_children(pid: int) -> bool:
    files = list(Path(f"/proc/{pid}/task").glob("*/children")) if Path(f"/proc/{pid}").exists() else []
    try:
        return any(file.read_bytes() for file in files)
    except OSError:
        return True  # a thread of it has just ended: let the server look
