"""Host server itself: its clock, its errors, the dead targets that it removes."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED

__all__ = ["CleanRequest", "Cleaned", "HostClock", "Problem", "ProblemAnswer", "Removed"]


@dataclass(frozen=True)
class HostClock:
    """When the question came in and when the answer went out, in seconds since 1970 by the host's clock."""

    __pydantic_config__ = DOCUMENTED

    host: str
    """name of the host"""
    received: float
    """when the question came in"""
    answered: float
    """when the answer was made"""


@dataclass(frozen=True)
class Problem:
    """What went wrong, for a human."""

    __pydantic_config__ = DOCUMENTED

    message: str
    """what was tried and seen, in one line"""
    hint: str
    """what to try next; may be empty"""
    kind: str
    """class of the error in probe_agent.errors"""


@dataclass(frozen=True)
class ProblemAnswer:
    """The body of every answer that is an error."""

    __pydantic_config__ = DOCUMENTED

    error: Problem
    """the only field"""


@dataclass(frozen=True)
class CleanRequest:
    """Which dead targets are meant; all of them when nothing is said."""

    __pydantic_config__ = DOCUMENTED

    older_than_s: float = 0.0
    """leave those that recorded something in the last so many seconds"""


@dataclass(frozen=True)
class Removed:
    """One dead target whose rings are gone now."""

    __pydantic_config__ = DOCUMENTED

    pid: int
    """process id it had"""
    command: tuple[str, ...]
    """command line it had"""
    mib: float
    """memory that its files took, in MiB"""


@dataclass(frozen=True)
class Cleaned:
    """What was taken away, and how many dead targets were left because they are not old enough."""

    __pydantic_config__ = DOCUMENTED

    removed: tuple[Removed, ...]
    """sorted by rank, then by process id"""
    left: int
    """dead targets that are still there"""
