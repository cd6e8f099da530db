"""Client of the job's TCPStore with a time limit: it appends a line to a value and reads it.

It speaks the store's own protocol (TCPStoreBackend.hpp in torch's include folder; later versions only add numbers at
the end) over its own socket. torch's client has no time limit: connecting to a store whose process was stopped had not
returned after 100 s with a timeout of 2 s, and a failed connection writes to the job's stderr. Here every exchange ends
within `timeout_s`, except for the resolution of the store's host name.

Runs on a thread of the recorder, never on one of the job's. Costs the store two requests, about 0.3 ms.
"""

from __future__ import annotations

import os
import socket
import struct
from time import monotonic

__all__ = ["StoreFailed", "TcpStore"]

_MAGIC = 0x3C85F7CE
_VALIDATE, _GET, _CHECK, _APPEND, _PING = 0, 3, 5, 9, 13
#: Counter of the clients that wait for each other in the constructor of torch's store; it lacks the prefix of others.
_CLIENTS = b"init/"
#: Limit of a value: more than ten thousand ranks write.
MAX_BYTES = 8 << 20


class StoreFailed(Exception):
    """The store gave no answer, or an invalid one; the text says which."""


class TcpStore:
    """One connection. `address` is the local address that leads to the store."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        """Connect and validate the store. Raises StoreFailed."""
        self._deadline = monotonic() + timeout_s
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
        except OSError as failure:
            raise StoreFailed(f"cannot connect to the job's store at {host}:{port}: {failure}") from None
        self._pid = os.getpid()
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.address: str = self._socket.getsockname()[0].partition("%")[0]
            nonce = struct.pack("=I", os.getpid() & 0xFFFFFFFF)
            self._send(struct.pack("=BI", _VALIDATE, _MAGIC) + bytes([_PING]) + nonce)
            if self._receive(4) != nonce:
                raise StoreFailed(f"{host}:{port} does not speak the protocol of torch's TCPStore")
        except BaseException:
            self._socket.close()
            raise

    def renew(self, timeout_s: float) -> None:
        """Give the next requests `timeout_s` together."""
        self._deadline = monotonic() + timeout_s

    def append(self, key: str, text: str) -> None:
        """Append to the value of `key`. Raises StoreFailed."""
        self._send(bytes([_APPEND]) + _string(_key(key)) + _string(text.encode()))

    def get(self, key: str) -> str:
        """Return the value of `key`, empty if it does not exist; never waits for it. Raises StoreFailed."""
        return self._get(_key(key))

    def has(self, key: str) -> bool:
        """Return whether `key` exists. Raises StoreFailed."""
        return self._has(_key(key))

    def num_clients(self) -> int | None:
        """Return the number of ranks that have connected to the store, as torch's clients count themselves in it; None
        if they do not. Raises StoreFailed."""
        counted = self._get(_CLIENTS)
        return int(counted) if counted.isdigit() else None

    def _get(self, key: bytes) -> str:
        if not self._has(key):
            return ""
        self._send(bytes([_GET]) + _string(key))
        (length,) = struct.unpack("=Q", self._receive(8))
        if length > MAX_BYTES:
            raise StoreFailed(f"the store's answer is too long: {length:,} bytes")
        return self._receive(length).decode("utf-8", "replace")

    def _has(self, key: bytes) -> bool:
        self._send(bytes([_CHECK]) + struct.pack("=q", 1) + _string(key))
        return self._receive(1) == b"\0"

    def hang_up(self) -> None:
        """End the exchange from another thread. In a forked child only close the socket: the parent uses it."""
        if os.getpid() != self._pid:
            self._socket.close()
            return
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended already

    def close(self) -> None:
        self._socket.close()

    def _send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(self._left_s())
            self._socket.sendall(data)
        except OSError as failure:
            raise StoreFailed(f"cannot send to the job's store: {failure}") from None

    def _receive(self, length: int) -> bytes:
        parts = []
        while length:
            try:
                self._socket.settimeout(self._left_s())
                part = self._socket.recv(min(length, 65_536))
            except OSError as failure:
                raise StoreFailed(f"the job's store does not answer: {failure}") from None
            if not part:
                raise StoreFailed("the job's store closed the connection")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _left_s(self) -> float:
        left_s = self._deadline - monotonic()
        if left_s <= 0:
            raise StoreFailed("the job's store did not answer in time")
        return left_s


def _key(key: str) -> bytes:
    return b"/" + key.encode()  # as torch's own client names its keys


def _string(data: bytes) -> bytes:
    return struct.pack("=Q", len(data)) + data
