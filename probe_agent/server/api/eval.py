"""`POST /v1/eval`: run code in a target, and hear what it prints while it prints it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from probe_agent.server.access import Role
from probe_agent.server.audited import audited_lines
from probe_agent.server.chosen import ChosenTarget
from probe_agent.server.ndjson import NdjsonResponse
from probe_agent.server.problem import PROBLEMS
from probe_agent.targets import stream
from probe_agent.wire import EvalLine, EvalRequest

__all__ = ["ROLE", "router"]

ROLE: Role = "control"
router = APIRouter(responses=PROBLEMS)


@router.post("/v1/eval", status_code=200, response_model=EvalLine, response_class=NdjsonResponse)
async def evaluate(request: Request, target: ChosenTarget, code: EvalRequest) -> Response:
    """One JSON object a line, as they come; the last one has `done`. Hanging up cancels the code in the target."""
    lines = stream(target, "eval", code=code.code, session=code.session, timeout=code.timeout_s, at_step=code.at_step)
    return NdjsonResponse(audited_lines(request, target, "eval", code.code, lines))
