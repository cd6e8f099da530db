"""Messages between a server and its query workers, over one stream socket each.

The server sends pickles: the worker trusts it. What comes back is JSON and plain bytes, which the server measures
before it reads them: the worker has run somebody's statement.
"""

from __future__ import annotations

import json
import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probe_agent.targets import Target
from probe_agent.wire import QueryRequest

__all__ = ["HEAD", "MAX_HEAD_BYTES", "Job", "exactly", "packed", "received", "send_body", "send_head"]

#: The length of a message from the server, and of one from a worker.
_LENGTH = struct.Struct("<Q")
HEAD = struct.Struct("<I")
MAX_HEAD_BYTES = 64 << 20


@dataclass(frozen=True)
class Job:
    """One statement for a worker."""

    targets: Sequence[Target]
    request: QueryRequest
    arrow: bool
    remarks: Sequence[str]


def packed(message: object) -> bytes:
    """Return what the server sends for `message`."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def received(connection: socket.socket) -> object:
    """Wait for the server's next message. Raises EOFError if the server is gone."""
    (length,) = _LENGTH.unpack(exactly(connection, _LENGTH.size))
    return pickle.loads(exactly(connection, length))


def send_head(connection: socket.socket, said: Mapping[str, object]) -> None:
    """Send a message to the server."""
    data = json.dumps(said).encode()
    connection.sendall(HEAD.pack(len(data)) + data)


def send_body(connection: socket.socket, pieces: Sequence[bytes | bytearray]) -> None:
    """Send the bytes that a message has announced."""
    for piece in pieces:
        connection.sendall(piece)


def exactly(connection: socket.socket, length: int) -> bytes:
    """Read `length` bytes. Raises EOFError if the sender is gone."""
    data = bytearray(length)
    view = memoryview(data)
    at = 0
    while at < length:
        num = connection.recv_into(view[at:])
        if not num:
            raise EOFError("the other end has gone")
        at += num
    return bytes(data)
