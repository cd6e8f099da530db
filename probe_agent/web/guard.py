"""Turns away, before anything is read, what no client of ours would send.

A page in a browser on this host could otherwise reach the server under a name of its own (DNS rebinding), or have the
browser send it a form (CSRF). So the Host header must be a loopback name, and so must the Origin where there is one:
browsers send it, our clients do not. Costs a few microseconds a request.
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from probe_agent.errors import BadRequest, Forbidden

from .access import Access
from .problem import problem_response

__all__ = ["MAX_BODY_BYTES", "Guard"]

MAX_BODY_BYTES = 1 << 20
#: `unix` and `probe` are what clients call a server that they reach without a network.
_OUR_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\]|unix|probe)(:\d+)?", re.IGNORECASE)
_OUR_ORIGIN = re.compile(r"https?://" + _OUR_HOST.pattern, re.IGNORECASE)


class _TooBig(Exception):
    """The body has gone past the limit while it was read."""


class Guard:
    """ASGI middleware around the whole app. Who has asked is in `request.state.caller` afterwards."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            scope.setdefault("state", {})["caller"] = self._access.admit(scope)
        except Forbidden as refusal:
            await problem_response(refusal)(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if not _OUR_HOST.fullmatch(host):
            error = BadRequest(f"this server does not answer to the name {host!r}", "use 127.0.0.1 or localhost")
            await problem_response(error, 421)(scope, receive, send)
            return
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and not _OUR_ORIGIN.fullmatch(origin):
            error = BadRequest(f"pages of {origin!r} may not ask this server", "use the probe command or curl")
            await problem_response(error, 403)(scope, receive, send)
            return
        try:
            declared = headers.get(b"content-length", b"0")
            if not declared.isdigit() or int(declared) > MAX_BODY_BYTES:
                raise _TooBig
            await self._app(scope, _limited(receive), send)
        except _TooBig:
            error = BadRequest("the request is longer than 1 MiB", "send less code or SQL at a time")
            await problem_response(error, 413)(scope, receive, send)


def _limited(receive: Receive) -> Receive:
    num_bytes = 0

    async def limited() -> Message:
        nonlocal num_bytes
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > MAX_BODY_BYTES:
            raise _TooBig
        return message

    return limited
