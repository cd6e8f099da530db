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

from .connections import HANDSHAKE_S, KEPT_S, Connection

__all__ = ["Hosting"]

#: From the signal to the end of the process; what still runs is cancelled after 1 s of that.
END_S = 1.4
#: A loopback port that was opened for the dashboard closes when no session has asked for so long.
UNUSED_S = 600.0


class Hosting:
    """Serves `app` on `sockets` until `end` is called, or SIGINT or SIGTERM comes."""

    def __init__(
        self,
        app: FastAPI,
        sockets: Sequence[socket.socket],
        tls: ssl.SSLContext | None,
        tidy: Callable[[], None],
        pages: str = "",
    ) -> None:
        """`tls` is for the TCP sockets; `tidy` is called when all is over, also when something does not let go;
        `pages` is the URL of the dashboard on one of the sockets."""
        self._app = app
        self._tidy = tidy
        self._servers: list[tuple[uvicorn.Server, list[socket.socket]]] = []
        self._failure: BaseException | None = None
        self._loopback: int | None = None
        self._serving: asyncio.Future[None] | None = None
        self._pages = pages
        self._opening = asyncio.Lock()
        app.state.dashboard_address = self.dashboard_address
        app.state.endpoint = _endpoint(sockets)
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

    async def dashboard_address(self) -> str:
        """Return the URL of the dashboard. A server that is on its unix socket alone opens a port on loopback, which
        only sessions get through, and closes it once none has asked for `UNUSED_S`."""
        if self._pages:
            return self._pages
        async with self._opening:
            if self._loopback is None:
                listener = socket.create_server(("127.0.0.1", 0))
                server = uvicorn.Server(_config(self._app, None))
                self._servers.append((server, [listener]))
                self._loopback = listener.getsockname()[1]
                self._serving = asyncio.ensure_future(self._serve_dashboard(server, listener))
                while not server.started and not self._serving.done():
                    await asyncio.sleep(0.01)
        return f"http://127.0.0.1:{self._loopback}"

    async def _serve_dashboard(self, server: uvicorn.Server, listener: socket.socket) -> None:
        serving = asyncio.ensure_future(server.serve([listener]))
        sessions = self._app.state.access.sessions
        while not serving.done() and sessions.idle_s < UNUSED_S:
            await asyncio.wait({serving}, timeout=UNUSED_S / 60)
        self._loopback = None
        server.should_exit = True
        await serving
        self._servers = [each for each in self._servers if each[0] is not server]

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
        os.set_blocking(wake, False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        # Written by C at once: a handler in Python would wait for this thread to return from the read below, if the
        # signal came while it gave the GIL away.
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
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
                if self._serving is not None:
                    await self._serving


def _config(app: FastAPI, tls: ssl.SSLContext | None) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",  # it is one for both servers
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # or a header would say who asks
        timeout_keep_alive=KEPT_S,
        timeout_graceful_shutdown=1,
    )
    config.load()
    config.ssl = tls
    return config


def _endpoint(sockets: Sequence[socket.socket]) -> str:
    """Return how the command line on this host names us."""
    for each in sockets:
        if each.family == socket.AF_UNIX:
            return f"unix:{each.getsockname()}"
    host, port = sockets[0].getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
