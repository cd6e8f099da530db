"""Several requests in one: a client of many targets asks each host server once, and not once a target.

Each request passes the guard and its endpoint as if it had come alone, with the rights of whoever sends them all.
Runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import unquote

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from probe_agent.errors import BadRequest
from probe_agent.server.disconnect import wait_for_disconnect
from probe_agent.wire import BatchItem, BatchRequest
from probe_agent.wire.batch import FRAME

__all__ = ["read"]

read = APIRouter()

#: Requests of one batch that are answered at once; a client may send a few batches at a time.
MAX_AT_ONCE = 8
PATH = "/v1/batch"
MEDIA_TYPE = "application/vnd.probe.batch"
#: What the requests of a batch do not have in common.
_OWN_HEADERS = (b"accept", b"content-length", b"content-type", b"transfer-encoding")


@read.post(PATH, responses={200: {"content": {MEDIA_TYPE: {}}}}, response_class=Response)
async def batch(request: Request, asked: BatchRequest) -> Response:
    """Answer several requests, each as soon as it is there, in pieces: two unsigned 32-bit numbers (that of the
    request, and the length), then so many bytes. The first piece of each is its head, a JSON object with `status` and
    `headers`; an empty piece is its end. Hanging up ends what still runs."""
    for item in asked.items:
        path = unquote(item.path.partition("?")[0])
        if not path.startswith("/v1/") or path.startswith(PATH):
            raise BadRequest(f"{item.path} cannot be part of a batch", "use paths that begin with /v1/")
        if item.body is not None and not 0 <= item.body < len(asked.bodies):
            raise BadRequest(f"there is no body {item.body}", "count them from 0")
    return _Answers(request.app, asked)


class _Answers(Response):
    """Puts the requests to `app`, and sends their answers as they come."""

    def __init__(self, app: ASGIApp, asked: BatchRequest) -> None:
        super().__init__(None, media_type=MEDIA_TYPE)
        del self.headers["content-length"]
        self._app = app
        self._asked = asked
        self._sending = asyncio.Lock()
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        gone = asyncio.create_task(wait_for_disconnect(receive))
        asking = [
            asyncio.create_task(self._answer(number, item, scope, gone, send))
            for number, item in enumerate(self._asked.items)
        ]
        everything = asyncio.gather(*asking)
        waited_for: set[asyncio.Future[object]] = {everything, gone}  # type: ignore[arg-type]  # of whatever result
        try:
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            for task in asking:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await everything
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _answer(self, number: int, item: BatchItem, scope: Scope, gone: asyncio.Task[None], send: Send) -> None:
        body = b"" if item.body is None else self._asked.bodies[item.body].encode("utf-8", "replace")
        unread = [body]
        unsent: list[bytes] = []
        has_ended = False

        async def receive_own() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await asyncio.wait({gone})
            return {"type": "http.disconnect"}

        async def send_own(message: Message) -> None:
            """Send the head with the first of the body, and the last with the end: whoever reads pays by the chunk."""
            nonlocal has_ended
            if message["type"] == "http.response.start":
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
                unsent.append(json.dumps({"status": message["status"], "headers": headers}).encode())
                return
            if message.get("body"):
                unsent.append(message["body"])
            if not message.get("more_body"):
                has_ended = True
                unsent.append(b"")
            data = b"".join(FRAME.pack(number, len(piece)) + piece for piece in unsent)
            unsent.clear()
            async with self._sending:
                if data and not gone.done():
                    await send({"type": "http.response.body", "body": data, "more_body": True})

        async with self._slots:
            with suppress(Exception):  # it has been answered with status 500, and reported
                await self._app(_own_scope(scope, item, len(body)), receive_own, send_own)
            if not has_ended:
                await send_own({"type": "http.response.body"})


def _own_scope(scope: Scope, item: BatchItem, length: int) -> Scope:
    """Return the scope of one request of the batch."""
    path, _, query = item.path.partition("?")
    kept: Sequence[tuple[bytes, bytes]] = scope["headers"]
    own = [(b"accept", item.accept.encode("latin-1", "replace")), (b"content-length", str(length).encode())]
    if length:
        own.append((b"content-type", b"application/json"))
    same = ("type", "asgi", "http_version", "scheme", "root_path", "client", "server")
    return {
        **{name: scope[name] for name in same if name in scope},
        "method": "GET" if item.body is None else "POST",
        "path": unquote(path),
        "raw_path": path.encode("latin-1", "replace"),
        "query_string": query.encode("latin-1", "replace"),
        "headers": [*(each for each in kept if each[0] not in _OWN_HEADERS), *own],
        "state": dict(scope.get("state", {})),
    }
