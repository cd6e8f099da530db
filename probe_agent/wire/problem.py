"""How the server says that it could not answer."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED

__all__ = ["Problem", "ProblemAnswer"]


@dataclass(frozen=True)
class Problem:
    """What went wrong, for a human."""

    __pydantic_config__ = DOCUMENTED

    message: str
    """what was tried and seen, in one line"""
    hint: str
    """what to try next; may be empty"""
    kind: str
    """class of the error in probe_agent.errors"""


@dataclass(frozen=True)
class ProblemAnswer:
    """The body of every answer that is an error."""

    __pydantic_config__ = DOCUMENTED

    error: Problem
    """the only field"""
