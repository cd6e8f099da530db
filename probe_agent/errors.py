"""Root of all our errors: a message that says what failed and why, a hint that says what to try.

Each layer translates foreign exceptions once, at its edge, so that a user never sees a traceback of ours.
"""

from __future__ import annotations

__all__ = [
    "AttachDelayed",
    "AttachRefused",
    "BadRequest",
    "Forbidden",
    "LimitReached",
    "NoAnswer",
    "ProbeError",
    "QueryFailed",
    "Unauthorized",
]


class ProbeError(Exception):
    """An error that a user can act on: what failed and why (`message`), what to try (`hint`)."""

    #: The HTTP status the server answers with, and what the CLI exits with.
    http_status = 500
    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class BadRequest(ProbeError):
    """The request itself is wrong: bad usage, an unknown setting, an ambiguous target."""

    http_status = 400
    exit_code = 2


class QueryFailed(ProbeError):
    """The SQL was refused or failed; the message is one line and points at the place."""

    http_status = 422
    exit_code = 1


class LimitReached(QueryFailed):
    """The query has reached its limit of time, memory or length."""


class Forbidden(ProbeError):
    """The request is not allowed: another user, a token for reading only, a read-only target."""

    http_status = 403
    exit_code = 1


class Unauthorized(Forbidden):
    """The request has no token, or a wrong one."""

    http_status = 401


class NoAnswer(ProbeError):
    """The target or its server exists but could not be reached, or did not answer in time."""

    http_status = 504
    exit_code = 4


class AttachRefused(ProbeError):
    """A check before the attach failed; the target was not touched."""

    http_status = 409
    exit_code = 4


class AttachDelayed(AttachRefused):
    """The agent is in the target or will be, and waits for the GIL. What needs no agent still works."""
