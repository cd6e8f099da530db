"""`POST /v1/query`: one SQL statement over the tables of one target or of all."""

from __future__ import annotations

import json

from fastapi import APIRouter, Request, Response

from probe_agent.errors import LimitReached
from probe_agent.server.access import Caller, Role
from probe_agent.server.chosen import AnyTargets, Engine, LeftOut
from probe_agent.server.hangup import unless_hung_up
from probe_agent.server.problem import PROBLEMS
from probe_agent.server.reply import ReplyResponse
from probe_agent.sql import Asker
from probe_agent.wire import QueryRequest, QueryResult

__all__ = ["ROLE", "router"]

ROLE: Role = "read"
router = APIRouter(responses=PROBLEMS)

ARROW = "application/vnd.apache.arrow.stream"


@router.post("/v1/query", response_model=QueryResult, responses={200: {"content": {ARROW: {}}}})
async def query(
    request: Request, question: QueryRequest, engine: Engine, targets: AnyTargets, left_out: LeftOut
) -> Response:
    """Read-only SQL, limited in time, memory and rows; with a token for reading, to what the server's owner allows.
    With `Accept: application/vnd.apache.arrow.stream` the answer is an Arrow IPC stream, and its notes are a JSON list
    in the header `X-Probe-Notes`. Hanging up stops the query. A process without a recorder answers for its stacks
    (`python.backtrace`, `python.stacks`) only."""
    caller: Caller = request.state.caller
    held = caller.allowance.held(question) if caller.allowance else question
    wants_arrow = ARROW in request.headers.get("accept", "")
    asker: Asker = "owner" if caller.is_owner else "reader" if caller.allowance else "control"
    asked = engine.answer(targets, held, arrow=wants_arrow, remarks=left_out, asker=asker)
    try:
        reply = await unless_hung_up(request, asked)
    except LimitReached as reached:
        raise (caller.allowance.explained(reached) if caller.allowance else reached) from None
    if wants_arrow:
        # Who asks many hosts learns from the tables' shapes that all have those that one of them has listed.
        said = {"X-Probe-Notes": json.dumps(reply.notes), "X-Probe-Tables": json.dumps(reply.tables)}
        return ReplyResponse(reply, ARROW, said)
    return ReplyResponse(reply, "application/json", {})
