"""A connection to the host server, as uvicorn has it, and what we add: who is at the other end of a unix socket.

Runs on the server's event loop, once a connection.
"""

from __future__ import annotations

import asyncio
import socket
import struct

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Connection"]


class Connection(H11Protocol):
    """One connection, over TCP or a unix socket."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX:
            pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            # Every request gets a copy of this.
            self.app_state = {**self.app_state, "unix_peer": (pid, uid)}
