"""Notices that a client has hung up, and ends what it was waiting for.

Runs on the server's event loop; the work itself runs on a thread or on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from probe_agent.errors import NoAnswer

__all__ = ["in_thread", "unless_disconnected", "wait_for_disconnect"]

T = TypeVar("T")


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has gone; its request must have been read already."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def in_thread(request: Request, work: Callable[[], T], cancel: Callable[[], None]) -> T:
    """What `work` gives, run on a thread; `cancel` is called once if the client hangs up meanwhile."""
    working = asyncio.create_task(asyncio.to_thread(work))
    working.add_done_callback(_hear)
    gone = asyncio.create_task(wait_for_disconnect(request.receive))
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


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; it is cancelled if the client hangs up meanwhile. Raises NoAnswer then: nobody hears it."""
    working = asyncio.create_task(work)
    working.add_done_callback(_hear)
    gone = asyncio.create_task(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise NoAnswer("the client has hung up", "repeat the request")
    finally:
        gone.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})


def _hear(done: asyncio.Task[Any]) -> None:
    """Take an error also where nobody waits for it any more, or the wait for it is cancelled in the instant in which it
    comes: asyncio would print it."""
    if not done.cancelled():
        done.exception()
