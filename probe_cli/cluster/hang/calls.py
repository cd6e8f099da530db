"""The calls of collectives, sends and receives that each rank of a job has made, and which of them are over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Call", "Frame", "Group", "Rank", "Shapes"]

#: The sizes of each tensor of a call.
Shapes = tuple[tuple[int, ...], ...]


class Group(NamedTuple):
    """A process group: ranks that share a name, since groups of different ranks may have the same one."""

    name: str
    ranks: tuple[int, ...]

    def contains(self, rank: int) -> bool:
        return rank in self.ranks


class Frame(NamedTuple):
    """One line of a stack."""

    func: str
    file: str
    line: int


@dataclass(frozen=True)
class Call:
    """One call, as one rank has made it."""

    group: Group
    #: Its number in the group, the same on all ranks; a send or receive has a count of its own.
    seq: int
    op: str
    #: Its place among all calls of this rank.
    order: int
    #: The backend reported that it runs on the device; gloo never does.
    has_started: bool = False
    is_over: bool = False
    inputs: Shapes = ()
    outputs: Shapes = ()
    dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    #: Seconds since 1970.
    called: float = 0.0
    timeout_s: float | None = None
    #: Of a send or a receive: the rank at the other end.
    peer: int | None = None
    #: Of a send or a receive: those of this rank and group with the same number run at the same time.
    batch: int | None = None
    #: Innermost first.
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True)
class Rank:
    """What one rank shows."""

    rank: int
    calls: tuple[Call, ...] = ()
    #: What the job calls each group that it is a member of.
    groups: Mapping[Group, str] = field(default_factory=dict)
    #: The number of its newest collective in a group, where that is known without the call.
    come: Mapping[Group, int] = field(default_factory=dict)
