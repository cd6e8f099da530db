"""Opens a client for an endpoint, by the transport that fits.

This is the one door to httpx and to `probe_agent.server.create_app`: together 0.3 s of imports, which
`probe --help` must not pay and a host server's client pays only in part.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

from probe_agent.server.location import host_socket, listens
from probe_cli.endpoint import Archive, Endpoint, TcpServer, ThisHost, TlsServer, UnixServer

from .certificates import verifying
from .client import Client
from .token import check_of_listener

if TYPE_CHECKING:
    import ssl

    import httpx
    from fastapi import FastAPI

    from probe_agent.sql.query_engine import QueryEngine

__all__ = ["expect_query", "local_app", "open_client", "open_host"]

CONNECT_S = 5.0
_expects_query = False


@asynccontextmanager
async def open_client(endpoint: Endpoint) -> AsyncIterator[Client]:
    """A client for `endpoint`. Nothing is contacted yet."""
    async with _http(endpoint) as http:
        yield Client(endpoint, http, endpoint.selector)


@asynccontextmanager
async def open_host() -> AsyncIterator[Client]:
    """A client for all targets of this host."""
    async with _http(None) as http:
        yield Client(UnixServer(host_socket()), http, {})


def _http(endpoint: Endpoint | None) -> httpx.AsyncClient:
    # httpx imports rich and pygments for a command line of its own when it finds them: 35 ms for nothing.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    import httpx

    from .sockets import HostTransport, SocketTransport

    transport: httpx.AsyncBaseTransport
    base = "http://localhost"
    auth: httpx.Auth | None = None
    if isinstance(endpoint, TcpServer):
        from .token_auth import TokenAuth

        context = verifying() if isinstance(endpoint, TlsServer) else None
        base = f"{'http' if context is None else 'https'}://{endpoint.authority}"
        transport = SocketTransport(partial(_connected, endpoint, context), check_of_listener(endpoint))
        auth = TokenAuth()
    elif isinstance(endpoint, UnixServer) and not isinstance(endpoint, ThisHost):
        transport = SocketTransport(partial(asyncio.open_unix_connection, endpoint.path))
    elif isinstance(endpoint, Archive):
        from .inprocess import InProcessTransport

        transport = InProcessTransport(archive_app(endpoint.path))
    else:
        transport = HostTransport(_this_host)
    # No proxy and no other setting of the environment: a target's data goes nowhere but here.
    return httpx.AsyncClient(
        base_url=base,
        auth=auth,
        transport=transport,
        trust_env=False,
        timeout=httpx.Timeout(None, connect=CONNECT_S),
    )


def _this_host() -> httpx.AsyncBaseTransport:
    """To the host server where one runs, else to the app in this process."""
    if listens(host_socket()):
        from .sockets import SocketTransport

        return SocketTransport(partial(asyncio.open_unix_connection, host_socket()))
    from .inprocess import InProcessTransport

    return InProcessTransport(local_app())


async def _connected(
    server: TcpServer, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    # The addresses of a name are tried one after the other, the next one when this one does not answer at once.
    delay_s = None if _is_address(server.host) else 0.25
    return await asyncio.open_connection(server.host, server.port, ssl=tls, happy_eyeballs_delay=delay_s)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@cache
def local_app() -> FastAPI:
    """The web app over the targets of this host, in this process."""
    return _create_app(None)


def archive_app(folder: str) -> FastAPI:
    """The same over what one target has left."""
    return _create_app(folder)


def _create_app(archive: str | None) -> FastAPI:
    _spare_threads()
    engine = _engine()
    if _expects_query:
        engine.start()  # its worker gets ready while FastAPI is loaded
    from probe_agent.server.app import create_app

    return create_app(archive=archive, engine=engine)


@cache
def _engine() -> QueryEngine:
    """One for all apps of this process, which have its workers together."""
    from probe_agent.sql.query_engine import QueryEngine

    return QueryEngine()


def expect_query() -> None:
    """Have a query worker made as soon as it turns out that this process answers itself."""
    global _expects_query
    _expects_query = True


def _spare_threads() -> None:
    """NumPy's linear algebra, which nobody here uses, would start its threads while it loads: 25 ms."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
