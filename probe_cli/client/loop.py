"""Runs one coroutine to its end; Ctrl-C cancels it, so that whatever it asked for is cancelled too.

`asyncio.run` alone does this only from Python 3.11 on. Runs on the CLI's main thread; in a notebook, whose thread has a
loop of its own already, on another thread while that one waits.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["interruptible", "run"]

T = TypeVar("T")


def run(question: Coroutine[Any, Any, T], *, ctrl_c: bool = True) -> T:
    """The result of `question`; raises KeyboardInterrupt when Ctrl-C cancelled it.

    With `ctrl_c` False the question calls `interruptible` itself, for the parts that may be cancelled.
    """

    if _is_in_a_loop():
        return _beside(question)
    handles = ctrl_c and threading.current_thread() is threading.main_thread()

    async def main() -> T:
        return await (interruptible(question) if handles else question)

    return asyncio.run(main())


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _beside(question: Coroutine[Any, Any, T]) -> T:
    """The same on another thread; Ctrl-C, which interrupts the waiting one, cancels the question."""
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()

    async def main() -> T:
        task = asyncio.ensure_future(question)
        begun.set_result((asyncio.get_running_loop(), task))
        return await task

    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(asyncio.run, main())
        try:
            return answer.result()
        except KeyboardInterrupt:
            loop, task = begun.result()
            loop.call_soon_threadsafe(task.cancel)
            raise


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
