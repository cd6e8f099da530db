"""Clients for endpoints, each over the transport that fits.

Imported once a question is asked, with httpx; `probe --help` pays for neither.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import httpx

from probe_cli.endpoint import Endpoint, LocalProcess, Report, TcpServer, ThisHost, TlsServer, UnixServer

from .batch import Batches
from .certificates import verifying
from .client import Client
from .host_server import ensure_server
from .sockets import HostTransport, SocketTransport
from .token import check_of_listener
from .token_auth import TokenAuth

__all__ = ["open_client", "open_clients", "open_host", "server_of"]

CONNECT_S = 5.0


class _NoCookies(httpx.Cookies):
    def extract_cookies(self, response: httpx.Response) -> None:
        """Host servers set none, and to look for them takes half of a short question's time."""


class _Http(httpx.AsyncClient):
    cookies = _NoCookies()  # type: ignore[override]  # none is set, either


@asynccontextmanager
async def open_client(endpoint: Endpoint) -> AsyncIterator[Client]:
    """A client for `endpoint`. Another host is not contacted yet; on this one a host server runs from here on."""
    async with open_clients([endpoint]) as (client,):
        yield client


@asynccontextmanager
async def open_clients(endpoints: Sequence[Endpoint]) -> AsyncIterator[list[Client]]:
    """Clients for endpoints behind one host server (`server_of`): what they ask at the same time travels together."""
    async with await _opened(endpoints[0]) as http:
        batches = Batches(http) if len(endpoints) > 1 else None
        yield [Client(endpoint, http, endpoint.selector, batches) for endpoint in endpoints]


def server_of(endpoint: Endpoint) -> Endpoint:
    """Return the host server that answers for an endpoint; a folder and a report are asked by themselves."""
    if isinstance(endpoint, LocalProcess):
        return ThisHost()
    if isinstance(endpoint, TcpServer | UnixServer):
        return replace(endpoint, rank=None, pid=None, job=None)
    return endpoint


async def _opened(endpoint: Endpoint) -> httpx.AsyncClient:
    transport: httpx.AsyncBaseTransport
    base, auth, connect_s = "http://localhost", None, None
    if isinstance(endpoint, Report):
        from .report import ReportTransport  # a door: query workers, which only a report needs here

        transport = ReportTransport(endpoint.path)
    elif isinstance(endpoint, TcpServer):
        context = verifying() if isinstance(endpoint, TlsServer) else None
        base = f"{'http' if context is None else 'https'}://{endpoint.authority}"
        transport = SocketTransport(partial(_connected, endpoint, context), check_of_listener(endpoint))
        auth, connect_s = TokenAuth(), CONNECT_S
    elif isinstance(endpoint, UnixServer) and not isinstance(endpoint, ThisHost):
        transport = SocketTransport(partial(asyncio.open_unix_connection, endpoint.path))
        connect_s = CONNECT_S
    else:
        await asyncio.to_thread(ensure_server)
        transport = HostTransport(_connected_to_this_host)
    # No proxy and no other setting of the environment: a target's data goes nowhere but here.
    limits = httpx.Timeout(None, connect=connect_s)
    return _Http(base_url=base, auth=auth, transport=transport, trust_env=False, timeout=limits)


@asynccontextmanager
async def open_host() -> AsyncIterator[Client]:
    """A client for all targets of this host."""
    async with open_client(ThisHost()) as client:
        yield client


async def _connected_to_this_host() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(await asyncio.to_thread(ensure_server))


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
