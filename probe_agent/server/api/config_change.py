"""`PATCH /v1/config`: the settings of a target's recorder, changed while it runs."""

from __future__ import annotations

from fastapi import APIRouter, Request

from probe_agent.server.access import Role
from probe_agent.server.audited import audited
from probe_agent.server.chosen import ChosenTarget
from probe_agent.server.problem import PROBLEMS
from probe_agent.targets import settings
from probe_agent.wire import SettingChanges, SettingList

__all__ = ["ROLE", "router"]

ROLE: Role = "control"
router = APIRouter(responses=PROBLEMS)


@router.patch("/v1/config")
def change(request: Request, target: ChosenTarget, changes: SettingChanges) -> SettingList:
    """Change settings; all of them or, when one is wrong, none. The answer lists them all."""
    asked = " ".join(f"{name}={value}" for name, value in changes.changes.items())
    with audited(request, target, "config", asked):
        return settings(target, changes.changes)
