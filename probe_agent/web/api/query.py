"""`POST /v1/query`: one SQL statement over the tables of one target or of all."""

from __future__ import annotations

import json
from contextlib import nullcontext

from fastapi import APIRouter, Request, Response

from probe_agent.errors import LimitReached
from probe_agent.sql import Deadline
from probe_agent.web.access import Caller, Role
from probe_agent.web.chosen import AnyTargets, Engine, LeftOut
from probe_agent.web.hangup import in_thread
from probe_agent.web.problem import PROBLEMS
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
    deadline = Deadline(held.timeout_s)
    wants_arrow = ARROW in request.headers.get("accept", "")
    answer_as = engine.arrow if wants_arrow else engine.json
    turn = request.app.state.readers if caller.allowance else nullcontext()
    try:
        async with turn:
            answer = await in_thread(request, lambda: answer_as(targets, held, deadline, left_out), deadline.cancel)
    except LimitReached as reached:
        raise (caller.allowance.explained(reached) if caller.allowance else reached) from None
    if wants_arrow:
        # Who asks many hosts learns from the tables' shapes that all have those that one of them has listed.
        said = {"X-Probe-Notes": json.dumps(answer.notes), "X-Probe-Tables": json.dumps(answer.tables)}
        return Response(answer.body, media_type=ARROW, headers=said)
    return Response(answer.body, media_type="application/json")
