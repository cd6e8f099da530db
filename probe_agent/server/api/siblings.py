"""`GET /v1/siblings`: the other ranks of a process's job on this host, with a recorder or without."""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import APIRouter, Query

from probe_agent.recorder.redaction import redacted_command
from probe_agent.server.access import Role
from probe_agent.server.problem import PROBLEMS
from probe_agent.targets import read_process, siblings_of
from probe_agent.wire import Launched, SiblingList

__all__ = ["ROLE", "router"]

ROLE: Role = "read"
router = APIRouter(responses=PROBLEMS)


@router.get("/v1/siblings")
def siblings(pid: Annotated[int, Query(description="process id of a rank of the server's user")]) -> SiblingList:
    """The ranks that meet at the same store, as RANK, MASTER_ADDR and MASTER_PORT in their environment say, or that
    have been spawned by the same parent; nothing is asked of any of them."""
    process = read_process(pid)
    found = siblings_of(pid) if process is not None and os.geteuid() in (0, process.uid) else None
    if found is None:
        return SiblingList("", (), "")
    started = []
    for rank, one in found.ranks:
        try:
            started.append(Launched(one.pid, rank, tuple(redacted_command(one.command))))
        except OSError:
            continue  # it has ended meanwhile
    ordered = sorted(started, key=lambda one: (one.rank is None, one.rank or 0, one.pid))
    return SiblingList(found.by, tuple(ordered), found.launcher)
