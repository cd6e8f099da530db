"""`GET /v1/targets`: who can be asked on this host."""

from __future__ import annotations

from time import time
from typing import Annotated

from fastapi import APIRouter, Query

from probe_agent.recorder.redaction import redacted_command
from probe_agent.server.access import Role
from probe_agent.server.chosen import Directory
from probe_agent.server.problem import PROBLEMS
from probe_agent.sql import newest_step
from probe_agent.targets import Process, Target
from probe_agent.wire import Candidate, TargetInfo, TargetList

__all__ = ["ROLE", "router"]

ROLE: Role = "read"
router = APIRouter(responses=PROBLEMS)


@router.get("/v1/targets")
def targets(
    directory: Directory,
    candidates: Annotated[bool, Query(description="also list Python processes without a recorder")] = False,
) -> TargetList:
    """Every target of this host, dead ones included; read from their files, nothing is asked of them."""
    found = tuple(_info(target) for target in directory.targets())
    others = directory.candidates() if candidates else []
    return TargetList(found, tuple(info for process in others if (info := _candidate(process)) is not None))


def _info(target: Target) -> TargetInfo:
    said = target.identity
    newest = newest_step(target)
    process, end = target.process, target.end
    return TargetInfo(
        pid=target.pid,
        rank=target.rank,
        local_rank=int(said.get("local_rank", 0)),
        world_size=int(said["world_size"]),
        host=str(said.get("host", "")),
        uid=int(said.get("uid", -1)),
        alive=target.is_alive,
        state=target.state,
        step=newest[0] if newest else None,
        step_age_s=max(0.0, time() - newest[1]) if newest else None,
        age_s=process.age_s if process else None,
        command=tuple(redacted_command([str(word) for word in said.get("command", ())])),
        python=str(said.get("python", "")),
        torch=said.get("torch"),
        version=str(said.get("version", "")),
        how=str(said.get("how", "")),
        attached_at=float(said.get("attached_at", 0.0)),
        folder=target.folder,
        ended=end.how if end else "",
        ended_badly=end is not None and end.badly,
        ended_at=end.at if end else None,
        last_seen=end.last_seen if end else None,
        job=target.job,
        store=str(said.get("store", "")),
        roles=target.roles,
    )


def _candidate(process: Process) -> Candidate | None:
    try:
        command = tuple(redacted_command(process.command))
        return Candidate(process.pid, process.uid, process.state, process.age_s, command)
    except OSError:
        return None  # it has ended meanwhile
