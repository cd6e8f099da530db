"""`POST /v1/profile/steps`: torch's profiler over exactly so many steps."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from probe_agent.server.access import Role
from probe_agent.server.audited import audited_lines
from probe_agent.server.chosen import ChosenTarget
from probe_agent.server.ndjson import NdjsonResponse
from probe_agent.server.problem import PROBLEMS
from probe_agent.targets import stream
from probe_agent.wire import ProfileLine, ProfileRequest

__all__ = ["ROLE", "router"]

ROLE: Role = "control"
router = APIRouter(responses=PROBLEMS)


@router.post("/v1/profile/steps", status_code=200, response_model=ProfileLine, response_class=NdjsonResponse)
async def profile_steps(request: Request, target: ChosenTarget, wanted: ProfileRequest) -> Response:
    """One JSON object a line: the operators, the trace in pieces, then one with `done`. The operators are rows of
    `python.profile_ops` afterwards. Hanging up stops the profiler when the step ends."""
    lines = stream(
        target,
        "profile_steps",
        steps=wanted.steps,
        timeout=wanted.timeout_s,
        shapes=wanted.shapes,
        memory=wanted.memory,
        trace=wanted.trace,
    )
    return NdjsonResponse(audited_lines(request, target, "profile", repr(wanted), lines))
