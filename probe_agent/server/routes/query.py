"""Read-only SQL, and the tables it can read."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from probe_agent.errors import LimitReached
from probe_agent.server.access.roles import Caller
from probe_agent.server.dependencies import AnyTargets, ChosenTargets, Engine, LeftOut
from probe_agent.server.disconnect import unless_disconnected
from probe_agent.server.reply import ReplyResponse
from probe_agent.sql.catalog import list_tables
from probe_agent.sql.workers.pool import Asker
from probe_agent.wire import QueryRequest, QueryResult, TableList

__all__ = ["read"]

read = APIRouter()


ARROW = "application/vnd.apache.arrow.stream"


@read.post("/v1/query", response_model=QueryResult, responses={200: {"content": {ARROW: {}}}})
async def query(
    request: Request, question: QueryRequest, engine: Engine, targets: AnyTargets, left_out: LeftOut
) -> Response:
    """Read-only SQL, limited in time, memory and rows; with a token for reading, to what the server's owner allows.
    With `Accept: application/vnd.apache.arrow.stream` the answer is an Arrow IPC stream, and its notes are a JSON list
    in the header `X-Probe-Notes`. Hanging up stops the query. A process without a recorder answers for its stacks
    (`python.backtrace`, `python.stacks`) only."""
    caller: Caller = request.state.caller
    held = caller.quota.held(question) if caller.quota else question
    wants_arrow = ARROW in request.headers.get("accept", "")
    asker: Asker = "owner" if caller.is_owner else "reader" if caller.quota else "control"
    asked = engine.answer(targets, held, arrow=wants_arrow, remarks=left_out, asker=asker)
    try:
        reply = await unless_disconnected(request, asked)
    except LimitReached as reached:
        raise (caller.quota.explained(reached) if caller.quota else reached) from None
    if wants_arrow:
        # A client of many hosts learns from the tables' shapes that all have those that one of them has listed.
        said = {"Notes": reply.notes, "Tables": reply.tables, "Missing": reply.missing}
        return ReplyResponse(reply, ARROW, {f"X-Probe-{name}": json.dumps(value) for name, value in said.items()})
    return ReplyResponse(reply, "application/json", {})


@read.get("/v1/tables")
def tables(
    engine: Engine,
    targets: ChosenTargets,
    left_out: LeftOut,
    names: Annotated[str, Query(description="only these tables, such as python.steps,python.stacks")] = "",
) -> TableList:
    """Return recorded and live tables: rows, the time these cover, and the type, unit and meaning of each column."""
    return list_tables(engine.rings, targets, left_out, set(filter(None, names.split(","))))
