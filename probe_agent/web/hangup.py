"""Notices that a client has hung up, and ends what it was waiting for.

Runs on the server's event loop; the work itself runs on a thread or on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.types import Receive

__all__ = ["in_thread", "wait_for_hangup"]

T = TypeVar("T")


async def wait_for_hangup(receive: Receive) -> None:
    """Return when the client has gone; its request must have been read already."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def in_thread(request: Request, work: Callable[[], T], cancel: Callable[[], None]) -> T:
    """What `work` gives, run on a thread; `cancel` is called once if the client hangs up meanwhile."""
    working = asyncio.create_task(asyncio.to_thread(work))
    gone = asyncio.create_task(wait_for_hangup(request.receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            cancel()
        return await working
    except asyncio.CancelledError:
        cancel()
        raise
    finally:
        gone.cancel()
