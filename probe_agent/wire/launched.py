"""What a launcher has started."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED

__all__ = ["Launched", "LaunchedList"]


@dataclass(frozen=True)
class Launched:
    """One training process that a launcher has started."""

    __pydantic_config__ = DOCUMENTED

    pid: int
    """process id, as the host sees it"""
    rank: int | None
    """rank in its job; 0 where it has none, null until it is known"""
    command: tuple[str, ...]
    """its command line"""


@dataclass(frozen=True)
class LaunchedList:
    """The training processes of a launcher."""

    __pydantic_config__ = DOCUMENTED

    launcher: str
    """what kind of launcher it is (torchrun, accelerate, mp.spawn, …); empty when it is none"""
    processes: tuple[Launched, ...]
    """by rank"""
