"""The one root of every error we own: a message that says what happened, a hint that says what to try.

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
    """Something a user can act on: what was tried and seen (`message`), what to try next (`hint`)."""

    #: The HTTP status the server answers with, and what the CLI exits with.
    http_status = 500
    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class BadRequest(ProbeError):
    """The question itself is wrong: bad usage, an unknown setting, an ambiguous target."""

    http_status = 400
    exit_code = 2


class QueryFailed(ProbeError):
    """The SQL was refused or failed; the message is one line and points at the place."""

    http_status = 422
    exit_code = 1


class LimitReached(QueryFailed):
    """The query came to the end of the time, the memory or the length that it may have."""


class Forbidden(ProbeError):
    """Whoever asks may not: another user, a token for reading only, a target that is only to be read."""

    http_status = 403
    exit_code = 1


class Unauthorized(Forbidden):
    """Nobody knows who asks: no token came, or a wrong one."""

    http_status = 401


class NoAnswer(ProbeError):
    """The target or its server exists but could not be reached, or did not answer in time."""

    http_status = 504
    exit_code = 4


class AttachRefused(ProbeError):
    """We looked before touching, and did not touch."""

    http_status = 409
    exit_code = 4


class AttachDelayed(AttachRefused):
    """The agent is in the target, or on its way, and waits for the GIL. What needs no agent can be asked."""
