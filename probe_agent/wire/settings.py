"""The settings of a target's recorder."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED

__all__ = ["SettingChanges", "SettingInfo", "SettingList"]


@dataclass(frozen=True)
class SettingInfo:
    """One setting and its value in this target."""

    __pydantic_config__ = DOCUMENTED

    name: str
    """such as trace.every"""
    value: str
    """as it is set"""
    default: str
    """in force when nobody changed it"""
    unit: str
    """empty where it has none"""
    meaning: str
    """what it does"""
    env: str
    """environment variable that sets it when a job starts"""
    in_force: str = ""
    """the value that holds now: another one where something overrules what is set"""
    why: str = ""
    """who set it, or why another value is in force; empty for a default in force"""


@dataclass(frozen=True)
class SettingList:
    """All settings of one target."""

    __pydantic_config__ = DOCUMENTED

    settings: tuple[SettingInfo, ...]
    """in the order of the documentation"""
    notes: tuple[str, ...] = ()
    """variables of its environment that look like settings and were ignored, and why"""


@dataclass(frozen=True)
class SettingChanges:
    """Settings to change; all of them or, when one is wrong, none."""

    __pydantic_config__ = DOCUMENTED

    changes: dict[str, str]
    """new value by name, as text"""
