"""What dead targets left behind, and taking it away."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED

__all__ = ["CleanRequest", "Cleaned", "Removed"]


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
