"""`POST /v1/watch`: expressions evaluated every so many steps."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from probe_agent.server.access import Role
from probe_agent.server.audited import audited_lines
from probe_agent.server.chosen import ChosenTarget
from probe_agent.server.ndjson import NdjsonResponse
from probe_agent.server.problem import PROBLEMS
from probe_agent.targets import stream
from probe_agent.wire import WatchLine, WatchRequest

__all__ = ["ROLE", "router"]

ROLE: Role = "control"
router = APIRouter(responses=PROBLEMS)


@router.post("/v1/watch", status_code=200, response_model=WatchLine, response_class=NdjsonResponse)
async def watch(request: Request, target: ChosenTarget, wanted: WatchRequest) -> Response:
    """One JSON object a line, as the steps end. What it sends is in `python.variables` too. Hanging up ends it in the
    target; an expression that has failed three times is taken off."""
    lines = stream(target, "watch_var", expressions=list(wanted.expressions), every=wanted.every, count=wanted.count)
    return NdjsonResponse(audited_lines(request, target, "watch", "\n".join(wanted.expressions), lines))
