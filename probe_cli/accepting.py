"""How the host server takes connections, as uvicorn does, and what we add: who is at the other end of a unix socket,
and TLS for those that come over TCP alone.

Runs on the server's event loop, once a connection.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from probe_agent.errors import BadRequest

__all__ = ["Connection", "HostServer", "showing"]

#: Until a client has shown that it speaks TLS.
HANDSHAKE_S = 10.0


def showing(certificate: str, key: str | None, client_ca: str | None) -> ssl.SSLContext:
    """TLS with this certificate, for all clients, or for those whose own `client_ca` has signed. Raises BadRequest."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as failure:
        named = ", ".join(filter(None, (certificate, key, client_ca)))
        raise BadRequest(
            f"no TLS with {named}: {failure}", "all of these are PEM files; is the key that of the certificate?"
        ) from None
    return context


class HostServer(uvicorn.Server):
    """uvicorn's, with `tls` on its TCP sockets and none on its unix sockets."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        private = [each for each in sockets or [] if self._tls and each.family != socket.AF_UNIX]
        await super().startup([each for each in sockets or [] if each not in private])
        for listener in private:
            server = await asyncio.get_running_loop().create_server(
                self._connection, sock=listener, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_S
            )
            self.servers.append(server)

    def _connection(self) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state)


class Connection(H11Protocol):
    """One connection, over TCP or a unix socket."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX:
            pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            # Every request gets a copy of this.
            self.app_state = {**self.app_state, "unix_peer": (pid, uid)}
