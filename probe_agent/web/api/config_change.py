"""`PATCH /v1/config`: the settings of a target's recorder, changed while it runs."""

from __future__ import annotations

from fastapi import APIRouter

from probe_agent.target import settings
from probe_agent.web.access import Role
from probe_agent.web.chosen import ChosenTarget
from probe_agent.web.problem import PROBLEMS
from probe_agent.wire import SettingChanges, SettingList

__all__ = ["ROLE", "router"]

ROLE: Role = "control"
router = APIRouter(responses=PROBLEMS)


@router.patch("/v1/config")
def change(target: ChosenTarget, changes: SettingChanges) -> SettingList:
    """Change settings; all of them or, when one is wrong, none. The answer lists them all."""
    return settings(target, changes.changes)
