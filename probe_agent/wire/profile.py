"""What to profile in a target, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ._documented import DOCUMENTED
from .query import Value

__all__ = ["CpuProfileRequest", "ProfileLine", "ProfileRequest"]


@dataclass(frozen=True)
class ProfileRequest:
    """Whole steps for torch's profiler."""

    __pydantic_config__ = DOCUMENTED

    steps: int = 3
    """number of steps, 1 to 100"""
    timeout_s: float = 60.0
    """how long to wait for them, in seconds"""
    shapes: bool = False
    """distinguish calls with different input shapes"""
    memory: bool = False
    """add up the allocations of operators; on a CPU torch then prints a line on the job's stderr"""
    trace: bool = False
    """send the Chrome trace as well"""


@dataclass(frozen=True)
class ProfileLine:
    """One line of the answer: the operators, a piece of the trace, or (with `done`) the summary."""

    __pydantic_config__ = DOCUMENTED

    columns: tuple[str, ...] | None = None
    """of the operators: the columns of python.profile_ops from `name` on"""
    rows: tuple[list[Value], ...] | None = None
    """one list per operator, by descending own time"""
    trace: str | None = None
    """the next piece of the trace, a JSON file, in base64"""
    note: str | None = None
    """the reason, if the target stopped early"""
    done: bool = False
    """whether this is the last line"""
    state: str | None = None
    """finished"""
    step: int | None = None
    """the first step that was profiled"""
    steps: int | None = None
    """number of profiled steps"""
    notes: tuple[str, ...] = ()
    """remarks on it"""


@dataclass(frozen=True)
class CpuProfileRequest:
    """Stacks to sample from outside."""

    __pydantic_config__ = DOCUMENTED

    seconds: int = 10
    """duration in seconds"""
    rate: int = 100
    """samples per second"""
    idle: bool = False
    """also waiting threads"""
    format: Literal["svg", "html", "speedscope", "folded"] = "folded"
    """a flame graph as SVG or as a page, a file for speedscope, or one line a stack with its number of samples"""
