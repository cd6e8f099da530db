"""An httpx transport that calls an ASGI app in our own process, streaming, and that can hang up.

httpx's own `ASGITransport` returns only when the whole response is there, and never tells the app that the
client has gone: with it, `eval` could not show output as it is printed, nor Ctrl-C stop a query.
Runs on the CLI's event loop; the app runs as a task beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import httpx

__all__ = ["App", "InProcessTransport"]

Message = MutableMapping[str, Any]  # whatever ASGI says: the protocol is untyped
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

#: How long an app may take to notice that the client has hung up before it is cancelled.
HANG_UP_S = 3.0


class _Call:
    """One request inside the app."""

    def __init__(self, app: App, scope: Message, body: bytes) -> None:
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(app, scope))

    async def _run(self, app: App, scope: Message) -> None:
        try:
            await app(scope, self._receive, self._messages.put)
        finally:
            self._messages.put_nowait(None)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def next(self, kind: str) -> Message | None:
        """The app's next message; None when it has ended. An app that failed raises here what it raised."""
        message = await self._messages.get()
        if message is None:
            await self._task
            return None
        if message["type"] != kind:
            raise httpx.RemoteProtocolError(f"the app sent {message['type']} instead of {kind}")
        return message

    async def hang_up(self, *, heard_all: bool = False) -> None:
        """Tell the app that nobody listens any more, and let it tidy up.

        What the app raises then is raised here when the answer was `heard_all` (a bug in the app); an app
        that was left early may well complain, and nobody minds.
        """
        self._gone.set()
        await asyncio.wait([self._task], timeout=HANG_UP_S)
        if not self._task.done():
            self._task.cancel()
        elif not self._task.cancelled() and (failure := self._task.exception()) and heard_all:
            raise failure


class _Body(httpx.AsyncByteStream):
    def __init__(self, call: _Call) -> None:
        self._call = call
        self._heard_all = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more and (message := await self._call.next("http.response.body")):
            more = message.get("more_body", False)
            self._heard_all = not more
            if message.get("body"):
                yield message["body"]

    async def aclose(self) -> None:
        await self._call.hang_up(heard_all=self._heard_all)


class InProcessTransport(httpx.AsyncBaseTransport):
    """Carries requests to `app` without a socket."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path.split(b"?")[0],
            "query_string": request.url.query,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "root_path": "",
            "server": (request.url.host, request.url.port),
            "client": ("127.0.0.1", 0),
        }
        call = _Call(self._app, scope, await request.aread())
        try:
            start = await call.next("http.response.start")
        except BaseException:
            await call.hang_up()
            raise
        if start is None:
            raise httpx.RemoteProtocolError("the app ended without an answer")
        return httpx.Response(start["status"], headers=start.get("headers", []), stream=_Body(call))
