"""Values of tensors: which parameters, gradients and buffers are not finite, and the norms of gradients."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from probe_agent.server.access.audit import audited_lines
from probe_agent.server.dependencies import ChosenTarget
from probe_agent.server.ndjson import NdjsonResponse
from probe_agent.targets import stream
from probe_agent.wire import HuntLine, HuntRequest, TensorsLine, TensorsRequest

__all__ = ["control"]

control = APIRouter()


@control.post("/v1/tensors", status_code=200, response_model=TensorsLine, response_class=NdjsonResponse)
async def tensors(request: Request, target: ChosenTarget, wanted: TensorsRequest) -> Response:
    """One JSON object, when all has been read. The training thread reads between steps, within the budget. Hanging up
    ends it."""
    lines = stream(target, "tensors", what=wanted.what, budget_ms=wanted.budget_ms, timeout=wanted.timeout_s)
    return NdjsonResponse(audited_lines(request, target, wanted.what, repr(wanted), lines))


@control.post("/v1/nan/hunt", status_code=200, response_model=HuntLine, response_class=NdjsonResponse)
async def hunt(request: Request, target: ChosenTarget, wanted: HuntRequest) -> Response:
    """One JSON object a line: one with `watching`, then one with `done`. The modules' values are looked at in the steps
    meanwhile. Hanging up ends it: the hooks are removed when the step ends."""
    lines = stream(
        target,
        "nan_hunt",
        steps=wanted.steps,
        seconds=wanted.seconds,
        every=wanted.every,
        budget_ms=wanted.budget_ms,
    )
    return NdjsonResponse(audited_lines(request, target, "nan hunt", repr(wanted), lines))
