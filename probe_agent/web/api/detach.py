"""`POST /v1/detach`: take the recorder out of a target."""

from __future__ import annotations

from fastapi import APIRouter, Request

from probe_agent.target import ask
from probe_agent.web.access import Role
from probe_agent.web.audited import audited
from probe_agent.web.chosen import ChosenTarget, Engine
from probe_agent.web.problem import PROBLEMS
from probe_agent.wire import Detached

__all__ = ["ROLE", "router"]

ROLE: Role = "control"
router = APIRouter(responses=PROBLEMS)

#: What runs is cancelled first, for 2 s at most. Less than the command line waits, so that what we saw is said.
_DETACH_S = 8.0


@router.post("/v1/detach")
def detach(request: Request, target: ChosenTarget, engine: Engine) -> Detached:
    """Take the recorder out again: hooks, thread, signal handler and files. What it recorded is gone afterwards."""
    with audited(request, target, "detach"):
        ask(target, "detach", timeout_s=_DETACH_S)
    engine.rings.forget_removed()
    return Detached(target.pid)
