"""Profiles: sampled stacks of all threads, or torch's profiler over a number of steps."""

from __future__ import annotations

import json

from fastapi import APIRouter, Request, Response

from probe_agent.errors import Forbidden
from probe_agent.server.access.audit import audited, audited_lines
from probe_agent.server.dependencies import AnyTarget, ChosenTarget
from probe_agent.server.disconnect import in_thread
from probe_agent.server.ndjson import NdjsonResponse
from probe_agent.targets import CpuProfile, stream
from probe_agent.wire import CpuProfileRequest, ProfileLine, ProfileRequest

__all__ = ["control"]

control = APIRouter()


MEDIA_TYPES = {
    "svg": "image/svg+xml",
    "html": "text/html; charset=utf-8",
    "speedscope": "application/json",
    "folded": "text/plain; charset=utf-8",
}


@control.post(
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


@control.post("/v1/profile/steps", status_code=200, response_model=ProfileLine, response_class=NdjsonResponse)
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
