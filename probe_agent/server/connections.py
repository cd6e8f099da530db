"""Connections of the host server: uvicorn's, with the peer of a unix socket, and a time limit for slow clients.

Runs on the server's event loop: a timer or two for each request.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from probe_agent.errors import BadRequest

__all__ = ["HANDSHAKE_S", "KEPT_S", "Connection", "tls_context"]

#: Until a client has shown that it speaks TLS.
HANDSHAKE_S = 10.0
#: Until a request is there to its last byte, head and body.
REQUEST_S = 20.0
#: A connection that rests, which REQUEST_S would end as well. Longer than clients use one again (httpx: 5 s, aiohttp:
#: 15), or it would be closed just as one of them asks.
KEPT_S = 18
#: A client that has taken nothing of its answer for so long is gone.
TAKE_S = 60.0
#: At once, over TCP. Unix sockets are not counted: their owner gets in when strangers keep all of these.
MAX_CONNECTIONS = 256


def tls_context(certificate: str, key: str | None, client_ca: str | None) -> ssl.SSLContext:
    """Return TLS with this certificate; with `client_ca`, only for clients whose certificate it has signed. Raises
    BadRequest."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as failure:
        named = ", ".join(filter(None, (certificate, key, client_ca)))
        raise BadRequest(
            f"no TLS with {named}: {failure}", "use PEM files, and the key that belongs to the certificate"
        ) from None
    return context


class Connection(H11Protocol):
    """One connection, over TCP or a unix socket."""

    _request_due: asyncio.TimerHandle | None = None
    _answer_due: asyncio.TimerHandle | None = None
    _is_tcp = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX:
            pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            # Every request gets a copy of this.
            self.app_state = {**self.app_state, "unix_peer": (pid, uid)}
        else:
            self._is_tcp = True
            if sum(getattr(each, "_is_tcp", False) for each in self.connections) > MAX_CONNECTIONS:
                transport.abort()
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._request_due, self._answer_due):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_taking(None)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answer_due is not None:
            self._answer_due.cancel()
            self._answer_due = None

    def _expect_request(self) -> None:
        """Have the time run from a request's beginning, and stop it at its end."""
        is_whole = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
        if is_whole and self._request_due is not None:
            self._request_due.cancel()
            self._request_due = None
        elif not is_whole and self._request_due is None:
            self._request_due = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _expect_taking(self, left: int | None) -> None:
        """End the connection if of what is `left` to be sent nothing has been taken by the next look."""
        now = self.transport.get_write_buffer_size()
        if left is not None and now >= left:
            self.transport.abort()
        else:
            self._answer_due = self.loop.call_later(TAKE_S, self._expect_taking, now)
