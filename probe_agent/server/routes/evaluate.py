"""Python in a target: evaluation, completion, watched expressions."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from probe_agent.errors import NoAnswer
from probe_agent.server.access.audit import audited_lines
from probe_agent.server.dependencies import ChosenTarget
from probe_agent.server.ndjson import NdjsonResponse
from probe_agent.targets import ask, stream
from probe_agent.wire import (
    CompletionRequest,
    Completions,
    EvalLine,
    EvalRequest,
    HoldRequest,
    TicketMove,
    TicketState,
    WatchLine,
    WatchRequest,
    decode,
)

__all__ = ["control"]

control = APIRouter()


@control.post("/v1/eval", status_code=200, response_model=EvalLine, response_class=NdjsonResponse)
async def evaluate(request: Request, target: ChosenTarget, code: EvalRequest) -> Response:
    """Return one JSON object per line; the last one has `done`. Closing the connection cancels the code."""
    lines = stream(target, "eval", code=code.code, session=code.session, timeout=code.timeout_s, at_step=code.at_step)
    return NdjsonResponse(audited_lines(request, target, "eval", code.code, lines))


@control.post("/v1/eval/hold", status_code=200, response_model=EvalLine, response_class=NdjsonResponse)
async def hold(request: Request, target: ChosenTarget, wanted: HoldRequest) -> Response:
    """The lines of `/v1/eval`, the first one with `held`. The code runs when `/v1/eval/ticket` has let it go; hanging
    up before that drops it, hanging up later does not."""
    lines = stream(target, "hold", code=wanted.code, ticket=wanted.ticket, timeout=wanted.timeout_s)
    return NdjsonResponse(audited_lines(request, target, "eval", wanted.code, lines))


@control.post("/v1/eval/ticket")
def move(target: ChosenTarget, wanted: TicketMove) -> TicketState:
    """Inspect code that `/v1/eval/hold` keeps under a ticket, name the step, commit, or abort."""
    answer = ask(target, "ticket", ticket=wanted.ticket, do=wanted.do, step=wanted.step)
    try:
        return decode(TicketState, answer)
    except ValueError as error:
        raise NoAnswer(f"{target} answered in a way that we do not know: {error}", "attach again") from error


@control.post("/v1/complete")
def complete(target: ChosenTarget, line: CompletionRequest) -> Completions:
    """Return names that complete the line."""
    answer = ask(target, "complete", text=line.text, session=line.session)
    return Completions(tuple(map(str, answer.get("matches", ()))))


@control.post("/v1/watch", status_code=200, response_model=WatchLine, response_class=NdjsonResponse)
async def watch(request: Request, target: ChosenTarget, wanted: WatchRequest) -> Response:
    """One JSON object a line, as the steps end. What it sends is in `python.variables` too. Hanging up ends it in the
    target; an expression that has failed three times is taken off."""
    lines = stream(target, "watch_var", expressions=list(wanted.expressions), every=wanted.every, count=wanted.count)
    return NdjsonResponse(audited_lines(request, target, "watch", "\n".join(wanted.expressions), lines))
