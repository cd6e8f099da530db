"""`GET` and `PATCH /v1/config`: the settings of a target's recorder, seen and changed while it runs."""

from __future__ import annotations

from fastapi import APIRouter

from probe_agent.target import Target, ask
from probe_agent.web.chosen import ChosenTarget
from probe_agent.web.problem import PROBLEMS
from probe_agent.wire import SettingChanges, SettingInfo, SettingList, decode

__all__ = ["router"]

router = APIRouter(responses=PROBLEMS)


@router.get("/v1/config")
def show(target: ChosenTarget) -> SettingList:
    """Every setting with its value, default, unit and meaning."""
    return _settings(target, {})


@router.patch("/v1/config")
def change(target: ChosenTarget, changes: SettingChanges) -> SettingList:
    """Change settings; all of them or, when one is wrong, none. The answer lists them all."""
    return _settings(target, changes.changes)


def _settings(target: Target, changes: dict[str, str]) -> SettingList:
    answer = ask(target, "config", changes=changes)
    return SettingList(tuple(decode(SettingInfo, setting) for setting in answer.get("settings", ())))
