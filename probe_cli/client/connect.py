"""Opens a client for an endpoint, by the transport that fits.

This is the one door to httpx and to `probe_agent.web.create_app`: together 0.3 s of imports, which
`probe --help` must not pay and a host server's client pays only in part.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING

from probe_cli.endpoint import Archive, Endpoint, LocalProcess, TcpServer, UnixServer

from .client import Client

if TYPE_CHECKING:
    import httpx
    from fastapi import FastAPI

__all__ = ["host_socket", "listens", "local_app", "num_living", "open_client", "open_host"]

CONNECT_S = 5.0
#: A connection that has rested longer is not used again: host servers close theirs after 5 s, perhaps just then.
KEPT_S = 2.0


def host_socket() -> str:
    """Where this user's host server listens when it runs."""
    return f"/dev/shm/probe-{os.getuid()}/host.sock"


@asynccontextmanager
async def open_client(endpoint: Endpoint) -> AsyncIterator[Client]:
    """A client for `endpoint`. Nothing is contacted yet."""
    selector: dict[str, str] = {}
    if isinstance(endpoint, LocalProcess):
        selector["pid"] = str(endpoint.pid)
    elif not isinstance(endpoint, Archive) and endpoint.rank is not None:
        selector["rank"] = str(endpoint.rank)
    async with _http(endpoint) as http:
        yield Client(endpoint, http, selector)


@asynccontextmanager
async def open_host() -> AsyncIterator[Client]:
    """A client for all targets of this host."""
    async with _http(None) as http:
        yield Client(UnixServer(host_socket()), http, {})


def _http(endpoint: Endpoint | None) -> httpx.AsyncClient:
    # httpx imports rich and pygments for a command line of its own when it finds them: 35 ms for nothing.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    import httpx

    transport: httpx.AsyncBaseTransport
    base = "http://localhost"
    # Only plain HTTP is spoken: without verify=False httpx would load the system's certificates, 20 ms.
    if isinstance(endpoint, TcpServer):
        base = f"http://{endpoint.authority}"
        transport = httpx.AsyncHTTPTransport(verify=False, limits=httpx.Limits(keepalive_expiry=KEPT_S))
    elif isinstance(endpoint, UnixServer):
        transport = httpx.AsyncHTTPTransport(
            verify=False, uds=endpoint.path, limits=httpx.Limits(keepalive_expiry=KEPT_S)
        )
    elif isinstance(endpoint, Archive):
        from .inprocess import InProcessTransport

        transport = InProcessTransport(archive_app(endpoint.path))
    elif listens(host_socket()):
        transport = httpx.AsyncHTTPTransport(verify=False, uds=host_socket())
    else:
        from .inprocess import InProcessTransport

        transport = InProcessTransport(local_app())
    # No proxy and no other setting of the environment: a target's data goes nowhere but here.
    return httpx.AsyncClient(
        base_url=base, transport=transport, trust_env=False, timeout=httpx.Timeout(None, connect=CONNECT_S)
    )


def listens(path: str) -> bool:
    """Whether somebody accepts connections on the unix socket `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


def num_living() -> int:
    """How many targets of this host live now."""
    return sum(target.is_alive for target in local_app().state.directory.targets())


@cache
def local_app() -> FastAPI:
    """The web app over the targets of this host, in this process."""
    return _create_app(None)


def archive_app(folder: str) -> FastAPI:
    """The same over what one target has left."""
    return _create_app(folder)


def _create_app(archive: str | None) -> FastAPI:
    # NumPy's linear algebra, which nobody here uses, would start its threads while it loads: 25 ms.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from probe_agent.web import create_app

    return create_app(archive=archive)
