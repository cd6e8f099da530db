"""A client that hangs up: its question is ended, and an error that nobody hears is not printed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.requests import Request

from probe_agent.errors import NoAnswer
from probe_agent.server.disconnect import unless_disconnected


@pytest.mark.parametrize("cancelled", [False, True])  # True: as a batch cancels its questions when its client goes
def test_an_error_of_a_question_that_nobody_waits_for_is_not_printed(cancelled: bool) -> None:
    printed: list[Mapping[str, Any]] = []
    ended: list[BaseException] = []

    async def question() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            raise NoAnswer("the target has gone")

    async def gone() -> dict[str, str]:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def answer() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context))
        asked = asyncio.create_task(unless_disconnected(Request({"type": "http"}, gone), question()))
        await asyncio.sleep(0.03)
        if cancelled:
            asked.cancel()
        ended.extend(error for error in await asyncio.gather(asked, return_exceptions=True) if error is not None)
        await asyncio.sleep(0.1)
        gc.collect()

    asyncio.run(answer())

    assert [type(error) for error in ended] == [asyncio.CancelledError if cancelled else NoAnswer]
    assert printed == []


@pytest.mark.parametrize("num_turns", range(5))  # of the event loop, from the error to the cancellation
def test_an_error_in_the_instant_of_the_cancellation_is_not_printed_either(num_turns: int) -> None:
    printed: list[Mapping[str, Any]] = []

    async def answer() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context))
        fails, stays = asyncio.Event(), asyncio.Event()

        async def question() -> None:
            await fails.wait()
            raise NoAnswer("no query ended in time")

        async def never() -> dict[str, str]:
            await stays.wait()
            return {}

        asked = asyncio.create_task(unless_disconnected(Request({"type": "http"}, never), question()))
        await asyncio.sleep(0.01)
        fails.set()
        for _ in range(num_turns):
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await asyncio.sleep(0.01)
        gc.collect()

    asyncio.run(answer())

    assert printed == []
