"""Values of parameters, gradients and buffers in a target, and the hunt for the module that makes NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ._documented import DOCUMENTED
from .query import Value

__all__ = ["LookedAt", "TensorsLine", "TensorsRequest"]


@dataclass(frozen=True)
class TensorsRequest:
    """What to read between steps, on the training thread."""

    __pydantic_config__ = DOCUMENTED

    what: Literal["nan", "grads"] = "nan"
    """nan: the parameters, gradients and buffers that are not finite; grads: all gradients with their norms"""
    budget_ms: float = 20.0
    """how long a step may be held up, in milliseconds; large models are read over several steps"""
    timeout_s: float = 60.0
    """how long to wait for the end, in seconds"""


@dataclass(frozen=True)
class LookedAt:
    """What was read of one kind of tensor."""

    __pydantic_config__ = DOCUMENTED

    kind: str
    """parameter, gradient or buffer"""
    tensors: int
    """number of tensors of the models found; for gradients of their parameters"""
    read: int
    """number of tensors that were read"""
    absent: int
    """parameters without a gradient at the end of a step, and tensors that are gone"""
    unreadable: int
    """tensors whose values cannot be read; the notes have the reasons"""
    values: int
    """number of values read"""
    not_finite: int
    """number of tensors with NaN or infinite values"""
    first_step: int | None = None
    """step after which the first one was read"""
    last_step: int | None = None
    """step after which the last one was read"""


@dataclass(frozen=True)
class TensorsLine:
    """The answer, in one line."""

    __pydantic_config__ = DOCUMENTED

    columns: tuple[str, ...] = ()
    """names of the values in a row"""
    rows: tuple[list[Value], ...] = ()
    """one list per tensor, module by module"""
    looked_at: tuple[LookedAt, ...] = ()
    """what was read, by kind"""
    steps: int = 0
    """number of steps after which something was read"""
    longest_s: float = 0.0
    """longest time that the training thread was held up after one step, in seconds"""
    done: bool = False
    """whether this is the last line"""
    state: str | None = None
    """finished, unfinished, or nothing found to read"""
    notes: tuple[str, ...] = ()
    """what could not be read, and why"""
