"""The ranks of one job on one host."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED
from .launched import Launched

__all__ = ["SiblingList"]


@dataclass(frozen=True)
class SiblingList:
    """The ranks on this host of the job that a process is a rank of, whether or not they have a recorder."""

    __pydantic_config__ = DOCUMENTED

    by: str
    """what they have in common: a store, or their parent; empty where nothing says that it is a rank"""
    processes: tuple[Launched, ...]
    """by rank"""
    launcher: str
    """the script or module of the launcher above them (torchrun, …); empty where there is none that is known"""
