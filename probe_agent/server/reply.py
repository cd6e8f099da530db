"""The answer of a query worker as an HTTP response, sent on as the client takes it.

Runs on the server's event loop, which has a megabyte of the answer at a time: the rest waits in the worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from probe_agent.sql.workers.pool import Reply

from .disconnect import wait_for_disconnect

__all__ = ["ReplyResponse"]


class ReplyResponse(Response):
    """Sends `reply`, and closes it, however that goes."""

    def __init__(self, reply: Reply, media_type: str, headers: Mapping[str, str]) -> None:
        super().__init__(None, headers=dict(headers), media_type=media_type)
        self.headers["content-length"] = str(reply.length)
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not sending.done():
                sending.cancel()
                await asyncio.wait({sending})
            await self._reply.aclose()
        if not sending.cancelled():
            sending.result()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._reply.pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
