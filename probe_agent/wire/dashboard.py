"""Dashboard: codes, sessions, and answers about a whole job."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED

__all__ = [
    "CodeRequest",
    "JobAnswer",
    "JobQueryRequest",
    "PageCode",
    "PageSession",
    "SessionRequest",
]


@dataclass(frozen=True)
class CodeRequest:
    """Wish for a link to the dashboard."""

    __pydantic_config__ = DOCUMENTED

    role: str = "control"
    """read or control; somebody who may only read gets read"""


@dataclass(frozen=True)
class PageCode:
    """A link to the dashboard: `address`, `#code=`, `code`."""

    __pydantic_config__ = DOCUMENTED

    code: str
    """opens one session, once"""
    valid_s: float
    """how long it can be used, in seconds"""
    role: str
    """what the session may do: read or control"""
    address: str
    """URL of the dashboard on the server's host"""
    host: str
    """name of that host"""


@dataclass(frozen=True)
class SessionRequest:
    """A code to be exchanged."""

    __pydantic_config__ = DOCUMENTED

    code: str
    """as `/v1/dashboard/code` has given it"""


@dataclass(frozen=True)
class PageSession:
    """What a page may do; the cookie comes in a header."""

    __pydantic_config__ = DOCUMENTED

    role: str
    """read or control"""
    host: str
    """name of the server's host"""
    version: str
    """version of the server"""
    key: str = ""
    """to be sent with every question in the header `X-Probe-Key`; only in the answer to a code"""


@dataclass(frozen=True)
class JobQueryRequest:
    """One read-only statement over all ranks of a job, on all its hosts."""

    __pydantic_config__ = DOCUMENTED

    sql: str
    """one SELECT statement in DuckDB's dialect"""
    max_rows: int = 100_000
    """maximum number of rows"""
    timeout_s: float = 10.0
    """how long it may run, in seconds"""


@dataclass(frozen=True)
class JobAnswer:
    """What a command says about a whole job."""

    __pydantic_config__ = DOCUMENTED

    command: str
    """the command, as a user would type it"""
    exit_code: int
    """its exit code"""
    answer: dict[str, object]
    """its JSON: rows, columns, notes, answered, unanswered, and the verdict; empty where it failed"""
    remarks: tuple[str, ...]
    """lines that it has written to stderr"""
    took_s: float
    """how long it took, in seconds"""
    at: float
    """when it was answered, in seconds since 1970: the answer may be a few seconds old"""
