"""`POST /v1/clean`: take away what dead targets left."""

from __future__ import annotations

import os
from time import time

from fastapi import APIRouter, Request

from probe_agent.errors import BadRequest
from probe_agent.recorder.redaction import redacted_command
from probe_agent.recorder.ring.folder import is_held, remove
from probe_agent.server.access import Role
from probe_agent.server.audited import audited
from probe_agent.server.chosen import Directory, Engine, Pid
from probe_agent.server.problem import PROBLEMS
from probe_agent.sql import newest_step
from probe_agent.targets import Target
from probe_agent.wire import Cleaned, CleanRequest, Removed

__all__ = ["ROLE", "router"]

ROLE: Role = "control"
router = APIRouter(responses=PROBLEMS)


@router.post("/v1/clean")
def clean(request: Request, wanted: CleanRequest, directory: Directory, engine: Engine, pid: Pid = None) -> Cleaned:
    """Remove the rings of targets that have ended: all of them, or those of `pid`. A living target is refused."""
    targets = directory.targets() if pid is None else directory.choose(pid)
    if pid is not None and any(target.is_alive for target in targets):
        raise BadRequest(f"pid {pid} lives: its rings are in use", f"take the recorder out of it: probe {pid} detach")
    dead = [target for target in targets if not target.is_alive]
    removed = []
    for target in dead:
        if time() - _newest(target) < wanted.older_than_s:
            continue
        try:
            if is_held(target.folder):
                continue
            mib = sum(entry.stat().st_blocks for entry in os.scandir(target.folder)) * 512 / 2**20
        except FileNotFoundError:
            continue  # somebody else was quicker
        with audited(request, target, "clean"):
            remove(target.folder)
        said = target.identity.get("command", ())
        removed.append(Removed(target.pid, tuple(redacted_command([str(word) for word in said])), mib))
    engine.rings.forget_removed()
    return Cleaned(tuple(removed), len(dead) - len(removed))


def _newest(target: Target) -> float:
    """When it last recorded something, as far as we know."""
    newest = newest_step(target)
    return max(float(target.identity.get("attached_at", 0.0)), newest[1] if newest else 0.0)
