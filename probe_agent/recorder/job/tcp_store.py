"""A short conversation with the job's TCPStore: add a line to a text there, and read it.

In the store's own protocol (TCPStoreBackend.hpp in torch's include folder; later versions have only added numbers at
its end), over a socket of ours, because torch's client has no limit: connecting one to a store whose process was
stopped had not come back after 100 s, with a timeout of 2 s, and where a connection fails it writes to the job's
stderr. Here every conversation is over within `timeout_s`, but for the look-up of the store's name, which is the
resolver's affair.

Runs on a thread of ours; never on one of the job's. Costs the store two requests, about 0.3 ms.
"""

from __future__ import annotations

import os
import socket
import struct
from time import monotonic

__all__ = ["StoreFailed", "TcpStore"]

_MAGIC = 0x3C85F7CE
_VALIDATE, _GET, _CHECK, _APPEND, _PING = 0, 3, 5, 9, 13
#: More than ten thousand ranks have to say.
MAX_BYTES = 8 << 20


class StoreFailed(Exception):
    """There was no answer, or none that we understand; the text says what was seen."""


class TcpStore:
    """One connection. `address` is ours, as seen from here: what the way to the store leaves by."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        """Connect, and see that it is such a store. Raises StoreFailed."""
        self._deadline = monotonic() + timeout_s
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
        except OSError as failure:
            raise StoreFailed(f"no connection to the job's store at {host}:{port}: {failure}") from None
        self._pid = os.getpid()
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.address: str = self._socket.getsockname()[0].partition("%")[0]
            nonce = struct.pack("=I", os.getpid() & 0xFFFFFFFF)
            self._send(struct.pack("=BI", _VALIDATE, _MAGIC) + bytes([_PING]) + nonce)
            if self._receive(4) != nonce:
                raise StoreFailed(f"{host}:{port} does not speak as torch's TCPStore does")
        except BaseException:
            self._socket.close()
            raise

    def append(self, key: str, text: str) -> None:
        """Add to the text at `key`. Raises StoreFailed."""
        self._send(bytes([_APPEND]) + _string(_key(key)) + _string(text.encode()))

    def get(self, key: str) -> str:
        """The text at `key`, empty when there is none; never waits for one. Raises StoreFailed."""
        self._send(bytes([_CHECK]) + struct.pack("=q", 1) + _string(_key(key)))
        if self._receive(1) != b"\0":
            return ""
        self._send(bytes([_GET]) + _string(_key(key)))
        (length,) = struct.unpack("=Q", self._receive(8))
        if length > MAX_BYTES:
            raise StoreFailed(f"an answer of {length} bytes")
        return self._receive(length).decode("utf-8", "replace")

    def hang_up(self) -> None:
        """From another thread: end the conversation now. In a forked child: only let go of it, it is the parent's."""
        if os.getpid() != self._pid:
            self._socket.close()
            return
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended

    def close(self) -> None:
        self._socket.close()

    def _send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(self._left_s())
            self._socket.sendall(data)
        except OSError as failure:
            raise StoreFailed(f"the store does not take what we send: {failure}") from None

    def _receive(self, length: int) -> bytes:
        parts = []
        while length:
            try:
                self._socket.settimeout(self._left_s())
                part = self._socket.recv(min(length, 65_536))
            except OSError as failure:
                raise StoreFailed(f"the store does not answer: {failure}") from None
            if not part:
                raise StoreFailed("the store hung up")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _left_s(self) -> float:
        left_s = self._deadline - monotonic()
        if left_s <= 0:
            raise StoreFailed("the store took too long")
        return left_s


def _key(key: str) -> bytes:
    return b"/" + key.encode()  # as torch's own client names its keys


def _string(data: bytes) -> bytes:
    return struct.pack("=Q", len(data)) + data
