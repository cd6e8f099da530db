"""Runs one coroutine to its end; Ctrl-C cancels it, so that whatever it asked for is cancelled too.

`asyncio.run` alone does this only from Python 3.11 on. Runs on the CLI's main thread.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["interruptible", "run"]

T = TypeVar("T")


def run(question: Coroutine[Any, Any, T], *, ctrl_c: bool = True) -> T:
    """The result of `question`; raises KeyboardInterrupt when Ctrl-C cancelled it.

    With `ctrl_c` False the question calls `interruptible` itself, for the parts that may be cancelled.
    """

    async def main() -> T:
        return await (interruptible(question) if ctrl_c else question)

    return asyncio.run(main())


async def interruptible(question: Coroutine[Any, Any, T]) -> T:
    """Await `question`; the first Ctrl-C cancels it in good order, the second one ends us at once."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(question)
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        if not interrupted:
            loop.remove_signal_handler(signal.SIGINT)
