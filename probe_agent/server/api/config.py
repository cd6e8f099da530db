"""`GET /v1/config`: the settings of a target's recorder."""

from __future__ import annotations

from fastapi import APIRouter

from probe_agent.server.access import Role
from probe_agent.server.chosen import ChosenTarget
from probe_agent.server.problem import PROBLEMS
from probe_agent.targets import settings
from probe_agent.wire import SettingList

__all__ = ["ROLE", "router"]

ROLE: Role = "read"
router = APIRouter(responses=PROBLEMS)


@router.get("/v1/config")
def show(target: ChosenTarget) -> SettingList:
    """Every setting with its value, default, unit and meaning."""
    return settings(target)
