"""Values of tensors: which parameters, gradients and buffers are not finite, and the norms of gradients."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from probe_agent.server.access.audit import audited_lines
from probe_agent.server.dependencies import ChosenTarget
from probe_agent.server.ndjson import NdjsonResponse
from probe_agent.server.problem import PROBLEMS
from probe_agent.targets import stream
from probe_agent.wire import TensorsLine, TensorsRequest

__all__ = ["control"]

control = APIRouter(responses=PROBLEMS)


@control.post("/v1/tensors", status_code=200, response_model=TensorsLine, response_class=NdjsonResponse)
async def tensors(request: Request, target: ChosenTarget, wanted: TensorsRequest) -> Response:
    """One JSON object, when all has been read. The training thread reads between steps, within the budget. Hanging up
    ends it."""
    lines = stream(target, "tensors", what=wanted.what, budget_ms=wanted.budget_ms, timeout=wanted.timeout_s)
    return NdjsonResponse(audited_lines(request, target, wanted.what, repr(wanted), lines))
