"""`POST /v1/complete`: how a line of code could go on, by the names in the target."""

from __future__ import annotations

from fastapi import APIRouter

from probe_agent.server.access import Role
from probe_agent.server.chosen import ChosenTarget
from probe_agent.server.problem import PROBLEMS
from probe_agent.targets import ask
from probe_agent.wire import CompletionRequest, Completions

__all__ = ["ROLE", "router"]

ROLE: Role = "control"
router = APIRouter(responses=PROBLEMS)


@router.post("/v1/complete")
def complete(target: ChosenTarget, line: CompletionRequest) -> Completions:
    """Names that could end the line."""
    answer = ask(target, "complete", text=line.text, session=line.session)
    return Completions(tuple(map(str, answer.get("matches", ()))))
