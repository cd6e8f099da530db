"""Host server itself: its clock, its errors, the dead targets that it removes."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED

__all__ = ["CleanRequest", "Cleaned", "HostClock", "Problem", "ProblemAnswer", "Removed"]


@dataclass(frozen=True)
class HostClock:
    """Times of the request and of the answer, in seconds since 1970 by the host's clock."""

    __pydantic_config__ = DOCUMENTED

    host: str
    """name of the host"""
    received: float
    """time of the request"""
    answered: float
    """time of the answer"""


@dataclass(frozen=True)
class Problem:
    """An error, for people."""

    __pydantic_config__ = DOCUMENTED

    message: str
    """what failed and why, in one line"""
    hint: str
    """the remedy; may be empty"""
    kind: str
    """class of the error in probe_agent.errors"""


@dataclass(frozen=True)
class ProblemAnswer:
    """The body of every error."""

    __pydantic_config__ = DOCUMENTED

    error: Problem
    """the error"""


@dataclass(frozen=True)
class CleanRequest:
    """The ended targets to remove; all of them by default."""

    __pydantic_config__ = DOCUMENTED

    older_than_s: float = 0.0
    """leave those that recorded something within this many seconds"""


@dataclass(frozen=True)
class Removed:
    """One ended target whose rings were removed."""

    __pydantic_config__ = DOCUMENTED

    pid: int
    """its PID"""
    command: tuple[str, ...]
    """its command line"""
    mib: float
    """size of its files, in MiB"""


@dataclass(frozen=True)
class Cleaned:
    """What was removed, and how many ended targets were left because they are not old enough."""

    __pydantic_config__ = DOCUMENTED

    removed: tuple[Removed, ...]
    """sorted by rank and PID"""
    left: int
    """ended targets that remain"""
