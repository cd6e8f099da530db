"""Values of parameters, gradients and buffers in a target, and the hunt for the module that makes NaN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ._documented import DOCUMENTED
from .query import Value

__all__ = ["HuntLine", "HuntRequest", "LookedAt", "Origin", "TensorsLine", "TensorsRequest"]


@dataclass(frozen=True)
class TensorsRequest:
    """What to read between steps, on the training thread."""

    __pydantic_config__ = DOCUMENTED

    what: Literal["nan", "grads", "parameters"] = "nan"
    """nan: the parameters, gradients and buffers that are not finite; grads, parameters: all of them with their norms
    """
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


@dataclass(frozen=True)
class HuntRequest:
    """How long to watch the steps of a target, and how closely."""

    __pydantic_config__ = DOCUMENTED

    steps: int | None = None
    """end after this many watched steps; null for no such limit"""
    seconds: float = 60.0
    """end after this many seconds"""
    every: int = 1
    """watch every Nth step"""
    budget_ms: float = 100.0
    """on a CPU: how long a step may be held up to read values, in milliseconds; what comes later in it is not read"""


@dataclass(frozen=True)
class Origin:
    """Where the first value came from that is not finite."""

    __pydantic_config__ = DOCUMENTED

    kind: str
    """data, input (of the outermost module), forward, loss, backward, or gradient (at the end of the step)"""
    modules: tuple[str, ...]
    """modules that made it; several if they cannot be told apart"""
    beside: str | None
    """the module made it in its own code, before or after this module below it"""
    value: str
    """NaN, Infinity or -Infinity"""
    came_in: str
    """the module's input in forward: finite, NaN, Infinity or -Infinity"""
    own: tuple[str, ...]
    """parameters and buffers of the module that were not finite"""
    call: int
    """which call of the module in the step; 0 if unknown"""
    num_calls: int
    """number of its calls in the step"""
    has_grad: bool
    """whether gradients were enabled in that call"""
    is_compiled: bool
    """whether the module is compiled; what is inside is not visible"""
    gradients: tuple[str, ...]
    """parameters whose gradients were not finite at the end of the step"""
    evidence: tuple[list[str], ...]
    """the first things that were not finite, in order: what, where, and the value"""


@dataclass(frozen=True)
class HuntLine:
    """One line of the answer: that it watches, or (with `done`) what was found."""

    __pydantic_config__ = DOCUMENTED

    watching: bool = False
    """whether the first watched step has begun"""
    done: bool = False
    """whether this is the last line"""
    state: str | None = None
    """found, or nothing"""
    origin: Origin | None = None
    """what was found"""
    step: int | None = None
    """step in which it was found"""
    at: float | None = None
    """when, in seconds since 1970 by the clock of the target's host"""
    counted: bool = False
    """whether steps have the job's own numbers, which are the same on all ranks"""
    first_step: int | None = None
    """first watched step"""
    last_good: int | None = None
    """last watched step without harm"""
    watched: int = 0
    """number of watched steps"""
    calls: int = 0
    """number of module calls in them"""
    unseen: int = 0
    """number of looks left out because the budget was spent"""
    notes: tuple[str, ...] = ()
    """what could not be seen, and why"""
