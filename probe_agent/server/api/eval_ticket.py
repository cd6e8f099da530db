"""`POST /v1/eval/ticket`: agree on the step after which code that several targets hold is to run."""

from __future__ import annotations

from fastapi import APIRouter

from probe_agent.errors import NoAnswer
from probe_agent.server.access import Role
from probe_agent.server.chosen import ChosenTarget
from probe_agent.server.problem import PROBLEMS
from probe_agent.targets import ask
from probe_agent.wire import TicketMove, TicketState, decode

__all__ = ["ROLE", "router"]

#: What comes of it is in the audit of the code that is held.
ROLE: Role = "control"
router = APIRouter(responses=PROBLEMS)


@router.post("/v1/eval/ticket")
def move(target: ChosenTarget, wanted: TicketMove) -> TicketState:
    """Look at code that `/v1/eval/hold` keeps under a ticket, name the step, let it run, or take that back."""
    answer = ask(target, "ticket", ticket=wanted.ticket, do=wanted.do, step=wanted.step)
    try:
        return decode(TicketState, answer)
    except ValueError as error:
        raise NoAnswer(f"{target} answered in a way that we do not know: {error}", "attach again") from error
