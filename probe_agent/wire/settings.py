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
    """the value that was set"""
    default: str
    """the default value"""
    unit: str
    """empty if it has none"""
    meaning: str
    """what it does"""
    env: str
    """environment variable that sets it when a job starts"""
    in_force: str = ""
    """the value in force, if it differs from the one that was set"""
    why: str = ""
    """its origin, or why another value is in force; empty for a default"""


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
    """Settings to change: all of them, or none if one is invalid."""

    __pydantic_config__ = DOCUMENTED

    changes: dict[str, str]
    """new value by name, as text"""
