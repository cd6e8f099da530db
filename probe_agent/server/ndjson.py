"""A stream of JSON lines that ends when the client hangs up, even while there is nothing to send.

Runs on the server's event loop. The status is sent with the first line, so what fails before is a proper error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from probe_agent.errors import ProbeError

from .disconnect import wait_for_disconnect
from .problem import problem_response

__all__ = ["NdjsonResponse"]

Line = dict[str, Any]  # whatever a target says in JSON


class NdjsonResponse(Response):
    """Sends each object of an async iterator as a line. An error after the first line becomes a note, and no `done`."""

    media_type = "application/x-ndjson"

    def __init__(self, lines: AsyncIterator[Line] | None = None) -> None:
        super().__init__()
        self._lines = lines
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(scope, receive, send))
        gone = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not sending.done():
                sending.cancel()  # closes the iterator, which cancels what it stands for
        try:
            await sending
        except asyncio.CancelledError:
            if not gone.done():
                raise

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        assert self._lines is not None, "a response class without lines describes an endpoint, it does not answer"
        try:
            async for line in self._lines:
                if not started:
                    started = True
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await send(_body(line))
        except ProbeError as error:
            if not started:
                await problem_response(error)(scope, receive, send)
                return
            await send(_body({"note": error.message + (f" ({error.hint})" if error.hint else "")}))
        finally:
            if isinstance(self._lines, AsyncGenerator):
                await self._lines.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _body(line: Line) -> dict[str, object]:
    data = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    return {"type": "http.response.body", "body": data, "more_body": True}
