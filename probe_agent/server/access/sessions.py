"""Sessions of browsers: a one-time code becomes a cookie and a key, and both come with every question.

The cookie is HttpOnly, so no script reads it, and SameSite=Strict, so no foreign page sends it. Browsers send the
cookies of a host to all of its ports, so another user's server on this host may see it: the key stays with the page's
own origin, port included, and a question needs both. A session belongs to the name under which it was opened.

Runs on the server's event loop; nothing is written to a file, and the end of the server ends every session.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from time import monotonic

from probe_agent.errors import BadRequest, Unauthorized
from probe_agent.tokens import Role

__all__ = ["COOKIE", "KEY_HEADER", "Session", "Sessions"]

COOKIE = "probe_session"
KEY_HEADER = b"x-probe-key"
#: How long a code waits for its browser, and how long a session lasts, used or not.
CODE_S, SESSION_S = 120.0, 12 * 3600.0
#: At once; the oldest goes first.
MAX_CODES, MAX_SESSIONS = 16, 64
_AGAIN = "open it again: probe … dashboard"


@dataclass
class Session:
    """One browser that a code has let in."""

    role: Role
    #: The name and port that the browser asks, as in its Host header.
    host: str
    key: bytes
    ends: float


class Sessions:
    """The codes that wait and the sessions that last, by the digests of their secrets."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._codes: dict[bytes, tuple[Role, float]] = {}
        self._sessions: dict[bytes, Session] = {}
        self._used = clock()

    @property
    def idle_s(self) -> float:
        """Time since a code was offered, or a session asked."""
        return self._clock() - self._used

    def offer(self, role: Role) -> str:
        """Return a new code that opens one session of this role, once and within `CODE_S`."""
        self._used = self._clock()
        while len(self._codes) >= MAX_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(24)
        self._codes[_digest(code)] = (role, self._used + CODE_S)
        return code

    def open(self, code: str, host: str) -> tuple[str, str, Role]:
        """Return cookie, key and role of a new session. Raises Unauthorized for a code that is unknown, used or old."""
        role, ends = self._codes.pop(_digest(code), ("read", 0.0))
        if ends < self._clock():
            raise Unauthorized("this link has been used already, or is too old", _AGAIN)
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        cookie, key = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._used = self._clock()
        self._sessions[_digest(cookie)] = Session(role, host.lower(), _digest(key), self._used + SESSION_S)
        return cookie, key, role

    def find(self, headers: Mapping[bytes, bytes], method: str) -> Session | None:
        """Return the session that a request belongs to; None where it brings no cookie of ours. Raises Unauthorized or
        BadRequest."""
        cookie = _cookie(headers)
        if cookie is None:
            return None
        session = self._sessions.get(_digest(cookie))
        if session is None or session.ends < self._clock():
            raise Unauthorized("the session of this page has ended", _AGAIN)
        host = headers.get(b"host", b"").decode("latin-1").lower()
        key = _digest(headers.get(KEY_HEADER, b"").decode("latin-1"))
        if host != session.host or not compare_digest(session.key, key):
            raise Unauthorized("this page did not open the session that its cookie names", _AGAIN)
        _check_origin(headers, method)
        self._used = self._clock()
        return session

    def end(self, headers: Mapping[bytes, bytes]) -> None:
        """Forget the session of a request."""
        cookie = _cookie(headers)
        if cookie is not None:
            self._sessions.pop(_digest(cookie), None)


def _check_origin(headers: Mapping[bytes, bytes], method: str) -> None:
    """Raise unless a page of this very server asks; the guard has compared the Origin with the Host already."""
    site = headers.get(b"sec-fetch-site")
    is_ours = site == b"same-origin" if site is not None else bool(headers.get(b"origin")) or method == "GET"
    if not is_ours:
        raise BadRequest("only the dashboard's own pages may use its session", "use the probe command, or a token")


def _cookie(headers: Mapping[bytes, bytes]) -> str | None:
    for part in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value
    return None


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()
