"""Code and expressions to evaluate in a target, and the lines of the answer."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED
from .query import Value

__all__ = [
    "CompletionRequest",
    "Completions",
    "EvalLine",
    "EvalRequest",
    "HoldRequest",
    "StepMark",
    "TicketMove",
    "TicketState",
    "WatchLine",
    "WatchRequest",
]


@dataclass(frozen=True)
class EvalRequest:
    """Code to run in the target."""

    __pydantic_config__ = DOCUMENTED

    code: str
    """Python statements; the value of a last expression is the result"""
    session: str | None = None
    """namespace that keeps the names that the code assigns"""
    timeout_s: float | None = None
    """limit on its run time in seconds; null for none"""
    at_step: bool = False
    """run it on the training thread, between two steps"""


@dataclass(frozen=True)
class HoldRequest:
    """Code for several targets to run after the same step."""

    __pydantic_config__ = DOCUMENTED

    code: str
    """Python statements; the value of a last expression is the result"""
    ticket: str
    """a unique name for it"""
    timeout_s: float | None = None
    """limit on its run time in seconds; null for none"""


@dataclass(frozen=True)
class EvalLine:
    """One line of the answer: output, a remark, or (with `done`) the end."""

    __pydantic_config__ = DOCUMENTED

    stream: str | None = None
    """stdout or stderr, if this line is output"""
    text: str | None = None
    """what was printed"""
    note: str | None = None
    """a remark: where a name was found"""
    held: bool = False
    """whether the code is held under its ticket now"""
    done: bool = False
    """whether this is the last line"""
    state: str | None = None
    """finished, failed, cancelled or timed out"""
    result: str | None = None
    """repr of the last expression's value; null if it is None"""
    traceback: str | None = None
    """of the exception that ended the code"""


@dataclass(frozen=True)
class TicketMove:
    """The next step of the two-phase protocol that runs code after the same step."""

    __pydantic_config__ = DOCUMENTED

    ticket: str
    """name under which the code is held"""
    do: str
    """look (how does the target stand), arm (name the step), go (run it when that step has ended) or revoke (take
    armed and go back)"""
    step: int | None = None
    """the step after which it is to run; look needs none"""


@dataclass(frozen=True)
class StepMark:
    """The end of one step."""

    __pydantic_config__ = DOCUMENTED

    step: int
    """number of the step, as this target counts"""
    ago_s: float
    """how long ago it ended, in seconds"""
    collectives: str | None = None
    """collectives issued so far to the groups of all ranks: the same on all ranks after the same step"""


@dataclass(frozen=True)
class TicketState:
    """State of a target that holds code."""

    __pydantic_config__ = DOCUMENTED

    ok: bool
    """whether the request took effect"""
    why: str
    """the reason if not, otherwise empty"""
    step: int | None
    """the newest step that has ended; null if none has been seen"""
    last_step: str
    """the same as text, with its age"""
    counted: bool
    """whether the number is the optimizer's own count; otherwise it counts from the start of the recorder"""
    started: bool
    """whether the code runs, or has run"""
    marks: tuple[StepMark, ...] = ()
    """the newest steps that have ended while the code was held, oldest first; only in the answer to look"""


@dataclass(frozen=True)
class CompletionRequest:
    """An incomplete line."""

    __pydantic_config__ = DOCUMENTED

    text: str
    """the line up to the cursor"""
    session: str | None = None
    """a session whose names are offered too"""


@dataclass(frozen=True)
class Completions:
    """Completions of the line."""

    __pydantic_config__ = DOCUMENTED

    matches: tuple[str, ...]
    """whole words that begin with the last word of the text"""


@dataclass(frozen=True)
class WatchRequest:
    """Expressions, and how often to evaluate them."""

    __pydantic_config__ = DOCUMENTED

    expressions: tuple[str, ...]
    """Python expressions; names are found as eval finds them"""
    every: int = 1
    """evaluate after each step whose number is a multiple of this"""
    count: int | None = None
    """number of evaluations; null until the client disconnects"""


@dataclass(frozen=True)
class WatchLine:
    """One line of the answer: values of the expressions, a remark, or (with `done`) the end."""

    __pydantic_config__ = DOCUMENTED

    rows: tuple[list[Value], ...] | None = None
    """step, ts, expression, value, text, error: the columns of python.variables"""
    note: str | None = None
    """a remark: where a name was found, what was removed"""
    done: bool = False
    """whether this is the last line"""
    state: str | None = None
    """finished or cancelled"""
