"""`GET /v1/tables`: what can be asked in SQL."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from probe_agent.server.access import Role
from probe_agent.server.chosen import ChosenTargets, Engine, LeftOut
from probe_agent.server.problem import PROBLEMS
from probe_agent.sql import list_tables
from probe_agent.wire import TableList

__all__ = ["ROLE", "router"]

ROLE: Role = "read"
router = APIRouter(responses=PROBLEMS)


@router.get("/v1/tables")
def tables(
    engine: Engine,
    targets: ChosenTargets,
    left_out: LeftOut,
    names: Annotated[str, Query(description="only these, as in python.steps,python.stacks")] = "",
) -> TableList:
    """Recorded and live tables, with their rows, the time these span, and each column's type, unit and meaning."""
    return list_tables(engine.rings, targets, left_out, set(filter(None, names.split(","))))
