"""`POST /v1/eval/hold`: give a target code that is to run after the step that several targets agree on."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from probe_agent.server.access import Role
from probe_agent.server.audited import audited_lines
from probe_agent.server.chosen import ChosenTarget
from probe_agent.server.ndjson import NdjsonResponse
from probe_agent.server.problem import PROBLEMS
from probe_agent.targets import stream
from probe_agent.wire import EvalLine, HoldRequest

__all__ = ["ROLE", "router"]

ROLE: Role = "control"
router = APIRouter(responses=PROBLEMS)


@router.post("/v1/eval/hold", status_code=200, response_model=EvalLine, response_class=NdjsonResponse)
async def hold(request: Request, target: ChosenTarget, wanted: HoldRequest) -> Response:
    """The lines of `/v1/eval`, the first one with `held`. The code runs when `/v1/eval/ticket` has let it go; hanging
    up before that drops it, hanging up later does not."""
    lines = stream(target, "hold", code=wanted.code, ticket=wanted.ticket, timeout=wanted.timeout_s)
    return NdjsonResponse(audited_lines(request, target, "eval", wanted.code, lines))
