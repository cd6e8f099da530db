"""`GET /v1/launched`: the training processes that a launcher has started."""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import APIRouter, Query

from probe_agent.recorder.redaction import redacted_command
from probe_agent.server.access import Role
from probe_agent.server.chosen import Directory
from probe_agent.server.problem import PROBLEMS
from probe_agent.targets import launched_by, read_process, without_recorder
from probe_agent.wire import Launched, LaunchedList

__all__ = ["ROLE", "router"]

ROLE: Role = "read"
router = APIRouter(responses=PROBLEMS)


@router.get("/v1/launched")
def launched(directory: Directory, pid: Annotated[int, Query(description="the launcher's process id")]) -> LaunchedList:
    """What the process has started, when it is a launcher of the server's user (torchrun, accelerate, deepspeed,
    mpirun, a script that waits in `mp.spawn`); nothing is asked of any of them."""
    process = read_process(pid)
    found = launched_by(pid) if process is not None and os.geteuid() in (0, process.uid) else None
    if found is None:
        return LaunchedList("", ())
    launcher, processes = found
    known = {target.pid: target for target in directory.seen() if target.is_alive}
    started = []
    for one in processes:
        try:
            rank = known.get(one.pid, without_recorder(one)).rank
            started.append(Launched(one.pid, rank, tuple(redacted_command(one.command))))
        except OSError:
            continue  # it has ended meanwhile
    return LaunchedList(launcher, tuple(sorted(started, key=lambda one: (one.rank is None, one.rank or 0, one.pid))))
