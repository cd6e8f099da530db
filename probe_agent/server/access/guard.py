"""Turns away, before anything but the head is read, who may not ask and what no client of ours would send.

A page in a browser on this host could reach the server under a name of its own (DNS rebinding), or have the browser
send it a form (CSRF). What it cannot do is send our token: so a question with the right token is answered under any
name of this host, and one without, where none is wanted, only under a loopback name. An Origin, which browsers send and
our clients do not, must be the name that is asked: a page of the server itself. Costs some microseconds a request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from probe_agent.errors import BadRequest, Forbidden, NoAnswer, ProbeError, Unauthorized
from probe_agent.server.problem import problem_response
from probe_agent.tokens import Role

from .roles import Access, Caller

__all__ = ["MAX_BODY_BYTES", "MAX_IN_FLIGHT", "Guard"]

MAX_BODY_BYTES = 1 << 20
_TOO_BIG = "the request is longer than 1 MiB"
#: Questions at once; those of the owner, on the unix socket, are not counted.
MAX_IN_FLIGHT = 64
#: `unix` and `probe` are what clients call a server that they reach without a network.
_OUR_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\]|unix|probe)(:\d+)?", re.IGNORECASE)
_ORIGIN = re.compile(r"https?://(.+)", re.IGNORECASE)


class _TurnedAway(Exception):
    """The error that is said, and the status with which."""

    def __init__(self, status: int, error: ProbeError, **headers: str) -> None:
        super().__init__(error.message)
        self.error = error
        self.status = status
        self.headers = headers


class Guard:
    """ASGI middleware around the whole app. Who has asked is in `request.state.caller` afterwards."""

    def __init__(self, app: ASGIApp, access: Access, roles: Sequence[tuple[BaseRoute, Role]]) -> None:
        self._app = app
        self._access = access
        self._roles = roles
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            caller = self._check(scope)
            counted = int(not caller.is_owner and caller.role != "open")
            if counted and self._in_flight >= MAX_IN_FLIGHT:
                busy = NoAnswer(f"this host server answers {MAX_IN_FLIGHT} questions already", "ask again in a moment")
                raise _TurnedAway(503, busy, **{"Retry-After": "1"})
            self._in_flight += counted
            try:
                await self._app(scope, _limited(receive), send)
            finally:
                self._in_flight -= counted
        except _TurnedAway as refusal:
            response = problem_response(refusal.error, refusal.status)
            response.headers.update(refusal.headers)
            await response(scope, receive, send)

    def _check(self, scope: Scope) -> Caller:
        """Who asks; raises what has to be said to who may not."""
        headers = dict(scope["headers"])
        needed = self._role_needed(scope)
        try:
            caller = self._access.stranger(scope) if needed == "open" else self._access.admit(scope)
        except Unauthorized as refusal:
            raise _TurnedAway(401, refusal, **{"WWW-Authenticate": "Bearer"}) from None
        except (BadRequest, Forbidden) as refusal:
            raise _TurnedAway(403, refusal) from None
        _check_names(caller, headers)
        if needed == "control" and caller.role != "control":
            error = Forbidden(
                f"{scope['method']} {scope['path']} is control, and this token is for reading only",
                "use the token for everything; `probe serve` says in which file it is",
            )
            raise _TurnedAway(403, error)
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > MAX_BODY_BYTES:
            raise _too_big()
        scope.setdefault("state", {})["caller"] = caller
        return caller

    def _role_needed(self, scope: Scope) -> Role:
        """Return the role of the requested endpoint; an unknown path requires only `read`."""
        return next((role for route, role in self._roles if route.matches(scope)[0] is Match.FULL), "read")


def _check_names(caller: Caller, headers: dict[bytes, bytes]) -> None:
    host = headers.get(b"host", b"").decode("latin-1")
    if not caller.has_token and not _OUR_HOST.fullmatch(host):
        error = BadRequest(f"this server does not answer to the name {host!r}", "use 127.0.0.1 or localhost")
        raise _TurnedAway(421, error)
    origin = headers.get(b"origin", b"").decode("latin-1")
    page = _ORIGIN.fullmatch(origin)
    if origin and not (page and page[1].lower() == host.lower()):
        error = BadRequest(f"pages of {origin!r} may not ask this server", "use the probe command or curl")
        raise _TurnedAway(403, error)


def _too_big() -> _TurnedAway:
    return _TurnedAway(413, BadRequest(_TOO_BIG, "send less code or SQL at a time"))


def _limited(receive: Receive) -> Receive:
    num_bytes = 0

    async def limited() -> Message:
        nonlocal num_bytes
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > MAX_BODY_BYTES:
            raise HTTPException(413, _TOO_BIG)  # of all exceptions FastAPI lets only these through from here
        return message

    return limited
