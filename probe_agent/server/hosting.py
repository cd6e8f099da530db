"""Two plain uvicorn servers over one app, one for unix sockets and one for TCP with or without TLS, and their end.

The event loop runs on a thread of its own, so that the main thread is free for signals: a server that is told to end
does so in time, whatever still runs on the loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
from asyncio import constants
from collections.abc import Awaitable, Callable, Sequence
from threading import Thread

import uvicorn
from fastapi import FastAPI

from .connections import HANDSHAKE_S, Connection

__all__ = ["Hosting"]

#: From the signal to the end of the process; what still runs is cancelled after 1 s of that.
END_S = 1.4


class Hosting:
    """Serves `app` on `sockets` until `end` is called, or SIGINT or SIGTERM comes."""

    def __init__(
        self, app: FastAPI, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None, tidy: Callable[[], None]
    ) -> None:
        """`tls` is for the TCP sockets; `tidy` is called when all is over, also when something does not let go."""
        self._app = app
        self._tidy = tidy
        self._servers: list[tuple[uvicorn.Server, list[socket.socket]]] = []
        self._failure: BaseException | None = None
        unix = [each for each in sockets if each.family == socket.AF_UNIX]
        for listeners, context in ((unix, None), ([each for each in sockets if each not in unix], tls)):
            if listeners:
                self._servers.append((uvicorn.Server(_config(app, context)), listeners))
        # uvicorn hands no time limit of a TLS handshake on, and asyncio's own is a minute.
        constants.SSL_HANDSHAKE_TIMEOUT = HANDSHAKE_S

    @property
    def has_clients(self) -> bool:
        """Whether a connection is open. uvicorn closes those that have rested for 5 s."""
        return any(server.server_state.connections for server, _ in self._servers)

    def end(self) -> None:
        """Stop accepting, give what runs a second, and end."""
        for server, _ in self._servers:
            server.should_exit = True

    def run(
        self, meanwhile: Callable[[Hosting], Awaitable[None]] | None = None, ready: Callable[[], None] | None = None
    ) -> None:
        """Serve; call from the main thread. `ready` is called once requests are answered; `meanwhile` runs on the event
        loop beside the servers."""
        waking, wake = os.pipe()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: os.write(wake, b"."))
        loop = Thread(target=self._run_loop, args=(meanwhile, ready, wake), daemon=True)
        loop.start()
        os.read(waking, 1)
        self.end()
        loop.join(END_S)
        self._tidy()
        if loop.is_alive():
            os._exit(0)
        if self._failure is not None:
            raise self._failure

    def _run_loop(
        self,
        meanwhile: Callable[[Hosting], Awaitable[None]] | None,
        ready: Callable[[], None] | None,
        wake: int,
    ) -> None:
        try:
            asyncio.run(self._serve(meanwhile, ready))
        except BaseException as failure:  # noqa: BLE001  # the main thread raises it
            self._failure = failure
        finally:
            os.write(wake, b".")

    async def _serve(
        self, meanwhile: Callable[[Hosting], Awaitable[None]] | None, ready: Callable[[], None] | None
    ) -> None:
        async with self._app.router.lifespan_context(self._app):
            beside = None if meanwhile is None else asyncio.ensure_future(meanwhile(self))
            if ready is not None:
                ready()
            try:
                await asyncio.gather(*(server.serve(listeners) for server, listeners in self._servers))
            finally:
                if beside is not None:
                    beside.cancel()


def _config(app: FastAPI, tls: ssl.SSLContext | None) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",  # it is one for both servers
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # or a header would say who asks
        timeout_graceful_shutdown=1,
    )
    config.load()
    config.ssl = tls
    return config
