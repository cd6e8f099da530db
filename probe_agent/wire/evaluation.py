"""Code to run in a target, and what comes back while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED

__all__ = ["CompletionRequest", "Completions", "EvalLine", "EvalRequest"]


@dataclass(frozen=True)
class EvalRequest:
    """Code to run in the target."""

    __pydantic_config__ = DOCUMENTED

    code: str
    """Python statements; the value of a last expression is the result"""
    session: str | None = None
    """name of a namespace that keeps what the code assigns"""
    timeout_s: float | None = None
    """how long it may run, in seconds; null for as long as it takes"""
    at_step: bool = False
    """run it on the training thread, between two steps"""


@dataclass(frozen=True)
class EvalLine:
    """One line of the answer: output, a remark, or (with `done`) how it ended."""

    __pydantic_config__ = DOCUMENTED

    stream: str | None = None
    """stdout or stderr, when this line is output"""
    text: str | None = None
    """what was printed"""
    note: str | None = None
    """a remark of ours: where a name was taken from"""
    done: bool = False
    """whether this is the last line"""
    state: str | None = None
    """finished, failed, cancelled or timed out"""
    result: str | None = None
    """repr of the last expression's value; null when it is None"""
    traceback: str | None = None
    """of the exception that ended the code"""


@dataclass(frozen=True)
class CompletionRequest:
    """A line as far as it is typed."""

    __pydantic_config__ = DOCUMENTED

    text: str
    """up to the cursor"""
    session: str | None = None
    """the session whose names count too"""


@dataclass(frozen=True)
class Completions:
    """How the line could go on."""

    __pydantic_config__ = DOCUMENTED

    matches: tuple[str, ...]
    """whole words that begin with the last word of the text"""
