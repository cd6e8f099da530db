"""The settings of a target's recorder, as it says them itself. Runs beside the target; one short question."""

from __future__ import annotations

from collections.abc import Mapping

from probe_agent.wire import SettingInfo, SettingList, decode

from .control import ask
from .target import Target

__all__ = ["settings"]


def settings(target: Target, changes: Mapping[str, str] | None = None) -> SettingList:
    """All of them, once `changes` are made. Raises NoAnswer, or BadRequest with what was wrong with a change."""
    answer = ask(target, "config", changes=dict(changes or {}))
    found = tuple(decode(SettingInfo, setting) for setting in answer.get("settings", ()))
    return SettingList(found, tuple(map(str, answer.get("notes", ()))))
