"""`POST /v1/profile/cpu`: the stacks of all threads, sampled from outside."""

from __future__ import annotations

import json

from fastapi import APIRouter, Request, Response

from probe_agent.errors import Forbidden
from probe_agent.server.access import Role
from probe_agent.server.audited import audited
from probe_agent.server.chosen import AnyTarget
from probe_agent.server.hangup import in_thread
from probe_agent.server.problem import PROBLEMS
from probe_agent.targets import CpuProfile
from probe_agent.wire import CpuProfileRequest

__all__ = ["ROLE", "router"]

ROLE: Role = "control"
router = APIRouter(responses=PROBLEMS)

MEDIA_TYPES = {
    "svg": "image/svg+xml",
    "html": "text/html; charset=utf-8",
    "speedscope": "application/json",
    "folded": "text/plain; charset=utf-8",
}


@router.post(
    "/v1/profile/cpu", response_class=Response, responses={200: {"content": {k: {} for k in MEDIA_TYPES.values()}}}
)
async def profile_cpu(request: Request, target: AnyTarget, wanted: CpuProfileRequest) -> Response:
    """Where the time goes, line by line, in the format that was asked for; remarks are a JSON list in the header
    `X-Probe-Notes`. Read from the target's memory: it is not stopped, and needs no recorder. Hanging up ends it."""
    if target.identity.get("readonly"):  # its recorder is not asked, so it cannot refuse
        raise Forbidden(f"{target} is only to be read (PROBE_READONLY): it is not profiled", "ask for its stacks")
    profile = CpuProfile(target, wanted)
    with audited(request, target, "profile", repr(wanted)):
        found = await in_thread(request, profile.take, profile.cancel)
    return Response(
        found.data, media_type=MEDIA_TYPES[wanted.format], headers={"X-Probe-Notes": json.dumps(found.notes)}
    )
