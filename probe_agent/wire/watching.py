"""Expressions to watch in a target, and what they are."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED
from .query import Value

__all__ = ["WatchLine", "WatchRequest"]


@dataclass(frozen=True)
class WatchRequest:
    """Expressions, and how often to look."""

    __pydantic_config__ = DOCUMENTED

    expressions: tuple[str, ...]
    """Python expressions; names are found as eval finds them"""
    every: int = 1
    """look after each step whose number can be divided by this"""
    count: int | None = None
    """look so many times; null for as long as somebody listens"""


@dataclass(frozen=True)
class WatchLine:
    """One line of the answer: what the expressions are, a remark, or (with `done`) how it ended."""

    __pydantic_config__ = DOCUMENTED

    rows: tuple[list[Value], ...] | None = None
    """step, ts, expression, value, text, error: the columns of python.variables"""
    note: str | None = None
    """a remark: where a name was found, what was taken off"""
    done: bool = False
    """whether this is the last line"""
    state: str | None = None
    """finished or cancelled"""
