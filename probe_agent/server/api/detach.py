"""`POST /v1/detach`: take the recorder out of a target."""

from __future__ import annotations

import os

from fastapi import APIRouter, Request

from probe_agent.server.access import Role
from probe_agent.server.audited import audited
from probe_agent.server.chosen import ChosenTarget, Engine
from probe_agent.server.problem import PROBLEMS
from probe_agent.targets import ask
from probe_agent.wire import Detached, DetachRequest

__all__ = ["ROLE", "router"]

ROLE: Role = "control"
router = APIRouter(responses=PROBLEMS)

#: What runs is cancelled first, for 2 s at most. Less than the command line waits, so that what we saw is said.
_DETACH_S = 8.0


@router.post("/v1/detach")
def detach(request: Request, target: ChosenTarget, engine: Engine, wanted: DetachRequest | None = None) -> Detached:
    """Take the recorder out again: hooks, thread, signal handler and files. What it recorded is gone afterwards, unless
    it is to be kept: then it is that of a target that has ended."""
    with audited(request, target, "detach"):
        answer = ask(target, "detach", timeout_s=_DETACH_S, keep=wanted is not None and wanted.keep)
    engine.rings.forget_removed()
    kept = os.path.basename(str(answer.get("kept") or ""))
    return Detached(target.pid, os.path.join(os.path.dirname(target.folder), kept) if kept else None)
