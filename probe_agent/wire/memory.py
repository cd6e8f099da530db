"""Which leaks to look for in a target, and what comes back; a snapshot of its allocator."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED
from .query import Value

__all__ = ["LeaksLine", "LeaksRequest", "SnapshotLine", "SnapshotRequest"]


@dataclass(frozen=True)
class LeaksRequest:
    """The window in which allocations are traced."""

    __pydantic_config__ = DOCUMENTED

    seconds: float = 10.0
    """its length in seconds, 300 at most; with `steps` the time after which it is given up"""
    steps: int | None = None
    """its length in steps, 3 to 10,000"""


@dataclass(frozen=True)
class LeaksLine:
    """One line of the answer: a note, the lines of the job that keep memory, or (with `done`) the summary."""

    __pydantic_config__ = DOCUMENTED

    note: str | None = None
    """what the window costs, or the reason why the target stopped early"""
    columns: tuple[str, ...] | None = None
    """kind (python, tensor, or a device), file, lineno, func, num (objects kept of those made in the window), size in
    MiB, more and growth (the same since the first third of the window), grows (steadily), graphs (tensors among them
    that keep their autograd graph), holder (of the newest tensor), source (the text of the line)"""
    rows: tuple[list[Value], ...] | None = None
    """one list per line of code, those that grow first"""
    done: bool = False
    """whether this is the last line"""
    state: str | None = None
    """finished or cancelled"""
    steps: int | None = None
    """steps in the window"""
    seconds: float | None = None
    """its length"""
    pause: float | None = None
    """the longest time, in seconds, that the job stood still for a look"""
    notes: tuple[str, ...] = ()
    """remarks on it"""


@dataclass(frozen=True)
class SnapshotRequest:
    """The state of torch's CUDA allocator; nothing is to be chosen."""

    __pydantic_config__ = DOCUMENTED


@dataclass(frozen=True)
class SnapshotLine:
    """One line of the answer: a piece of the snapshot, or `done`."""

    __pydantic_config__ = DOCUMENTED

    data: str | None = None
    """the next piece of torch's pickle, in base64"""
    note: str | None = None
    """the reason, if the target stopped early"""
    done: bool = False
    """whether this is the last line"""
    state: str | None = None
    """finished"""
