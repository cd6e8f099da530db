"""One connection of the control socket: its request, the lines of its answer, and its cancellation.

Runs on the thread of the request. A client that has stopped reading blocks it for at most SEND_TIMEOUT_S.
"""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Mapping
from math import isfinite
from time import monotonic
from typing import Any

__all__ = ["Gone", "Reply", "json_number"]

#: A client that reads nothing for this long counts as gone.
SEND_TIMEOUT_S = 10.0
_CHUNK_BYTES = 1 << 16


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def json_number(value: float | None) -> float | str | None:
    """Return `value` as JSON can hold it: a text if it is not finite."""
    return value if value is None or isfinite(value) else _NOT_FINITE[str(value)]


class Gone(Exception):
    """The client has closed the connection or stopped reading."""


class Reply:
    """The connection to one client."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._received = bytearray()
        self._cancelled = False

    def read_line(self, max_bytes: int, timeout_s: float) -> dict[str, Any]:
        """Return the next JSON object of the client. Raises ValueError for anything else, Gone if nothing comes."""
        deadline = monotonic() + timeout_s
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            if searched > max_bytes:
                raise ValueError(f"longer than {max_bytes >> 20} MiB")
            if not self._receive(max(0.0, deadline - monotonic())):
                raise Gone("the request was incomplete")
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        try:
            request = json.loads(line)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(request, dict):
            raise ValueError(f"expected a JSON object, not a {type(request).__name__}")
        return request

    def send(self, line: Mapping[str, object]) -> None:
        """Send one line. Raises Gone if the client does not read it."""
        rest = memoryview(json.dumps(line).encode() + b"\n")
        while rest:
            try:
                rest = rest[self._connection.send(rest, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                if not self._ready(select.POLLOUT, SEND_TIMEOUT_S):
                    self._cancelled = True
                    raise Gone(f"the client read nothing for {SEND_TIMEOUT_S:.0f} s") from None
            except OSError as error:
                self._cancelled = True
                raise Gone(str(error)) from None

    def cancelled(self) -> bool:
        """Return whether the client sent `{"op": "cancel"}` or disconnected, not merely half-closed; never blocks."""
        if not self._cancelled:
            self._receive(0.0)
            while b"\n" in self._received and not self._cancelled:
                try:
                    self._cancelled = self.read_line(_CHUNK_BYTES, 0.0).get("op") == "cancel"
                except ValueError:
                    continue  # an unknown line after the request
            if len(self._received) > _CHUNK_BYTES:
                self._received.clear()
            if self._ready(0, 0.0):
                self._cancelled = True
        return self._cancelled

    def cancel(self) -> None:
        """Cancel the request from this side: the recorder is leaving."""
        self._cancelled = True

    def hand_over(self) -> socket.socket:
        """Return the connection for the last answer."""
        return self._connection

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _receive(self, timeout_s: float) -> bool:
        """Read the bytes that have arrived, waiting for the first one. Return False if there are none."""
        if not self._ready(select.POLLIN, timeout_s):
            return False
        try:
            data = self._connection.recv(_CHUNK_BYTES)
        except OSError:
            return False
        self._received += data
        return bool(data)

    def _ready(self, events: int, timeout_s: float) -> bool:
        """Wait for `events`; without any, return whether the peer has disconnected."""
        poller = select.poll()
        poller.register(self._connection, events)
        return any(found & (events or ~0) for _, found in poller.poll(timeout_s * 1e3))
