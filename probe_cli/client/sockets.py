"""An httpx transport over asyncio's own sockets, with h11 for the protocol.

httpx's own goes through httpcore and anyio: 4 ms for a host that is asked twice, of which this one takes 1.5, and 60 ms
to load. Asking hundreds of hosts at once, that is what the command line does most of its time. Runs on the CLI's event
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, time
from typing import Any

import h11
import httpx

__all__ = ["HostTransport", "SocketTransport"]

Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]

#: A connection that has rested longer is not used again: host servers close theirs in the end, perhaps just then.
KEPT_S = 2.0
#: Notes come in the head of an answer.
MAX_HEAD_BYTES = 100 << 10
_READ_BYTES = 1 << 16
#: What a unix socket says when nobody has read the whole question, or nobody listens any more.
_UNREAD = (ConnectionResetError, BrokenPipeError, ConnectionRefusedError, FileNotFoundError)
#: Two installations in use at once replace each other's server with each command.
MAX_TRIES = 10


class SocketTransport(httpx.AsyncBaseTransport):
    """Asks one server, over connections that `connect` opens. A request with a token goes only over one that
    `check`, if there is any, has let pass: it is called before connecting and again after it, and raises. The extension
    `times` of an answer has when the question was sent and when the answer began to come, in seconds since 1970."""

    def __init__(self, connect: Callable[[], Awaitable[Opened]], check: Callable[[], None] | None = None) -> None:
        self._connect = connect
        self._check = check
        self._resting: list[_Connection] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        is_private = self._check is not None and "authorization" in request.headers
        connection = self._taken(is_private) or await self._opened(is_private, request.extensions["timeout"]["connect"])
        try:
            head = await connection.ask(request)
        except BaseException:
            connection.close()
            raise
        return httpx.Response(
            head.status_code,
            headers=list(head.headers),
            stream=_Body(connection, self._resting),
            extensions={"times": (connection.sent, connection.got)},
        )

    async def aclose(self) -> None:
        while self._resting:
            self._resting.pop().close()

    def _taken(self, is_private: bool) -> _Connection | None:
        for connection in self._resting:
            if connection.is_fresh and (connection.is_checked or not is_private):
                self._resting.remove(connection)
                return connection
        return None

    async def _opened(self, is_private: bool, timeout_s: float | None) -> _Connection:
        if is_private and self._check is not None:
            self._check()
        try:
            connection = await asyncio.wait_for(self._connected(), timeout_s)
        except (TimeoutError, asyncio.TimeoutError):  # two classes until Python 3.11
            raise httpx.ConnectTimeout("") from None
        if is_private and self._check is not None:
            try:
                self._check()
            except BaseException:
                connection.close()
                raise
            connection.is_checked = True
        return connection

    async def _connected(self) -> _Connection:
        with _as_httpx(httpx.ConnectError):
            return _Connection(*await self._connect())


class HostTransport(SocketTransport):
    """Asks the host server of this host, over connections for which `connect` starts one where none runs. A server that
    ends before it has read the whole question has done nothing, and its successor is asked.

    Of a unix socket the kernel tells that apart: one that is closed with something unread in it is reset, as is a
    connection that was never accepted; after a whole question it only ends.
    """

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        for _ in range(MAX_TRIES - 1):
            try:
                return await super().handle_async_request(request)
            except httpx.NetworkError as failure:
                if not isinstance(failure.__cause__, _UNREAD):
                    raise
        return await super().handle_async_request(request)


class _Connection:
    """One question at a time."""

    is_checked = False

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._rests_since = 0.0
        self.sent = self.got = 0.0

    @property
    def is_fresh(self) -> bool:
        """Whether it can be used again, as far as we know."""
        return monotonic() - self._rests_since < KEPT_S and not self._reader.at_eof()

    def rested(self) -> bool:
        """Whether it is ready for another question, when this one has been answered to its end."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self._rests_since = monotonic()
        return True

    def close(self) -> None:
        self._writer.close()

    async def ask(self, request: httpx.Request) -> h11.Response:
        """The head of the answer."""
        body = await request.aread()
        with _as_httpx(httpx.WriteError):
            method, target = request.method.encode(), request.url.raw_path
            sent = self._http.send(h11.Request(method=method, target=target, headers=request.headers.raw)) or b""
            if body:
                sent += self._http.send(h11.Data(data=body)) or b""
            sent += self._http.send(h11.EndOfMessage()) or b""
            self.sent = time()
            self._writer.write(sent)
            with suppress(ConnectionError):  # it may have answered before it hung up: that comes next
                await self._writer.drain()
        while not isinstance(event := await self.next_event(), h11.Response):
            pass  # 1xx, which says that an answer will come
        return event

    async def next_event(self) -> Any:  # one of h11's events, which have no class in common
        with _as_httpx(httpx.ReadError):
            while (event := self._http.next_event()) is h11.NEED_DATA:
                data = await self._reader.read(_READ_BYTES)
                if self._http.their_state is h11.SEND_RESPONSE:
                    self.got = time()
                if not data and self._http.their_state is h11.SEND_RESPONSE:
                    raise httpx.RemoteProtocolError("it hung up without an answer")
                self._http.receive_data(data)
            return event


class _Body(httpx.AsyncByteStream):
    """The rest of an answer; once it is closed, the connection rests or is closed, too."""

    def __init__(self, connection: _Connection, resting: list[_Connection]) -> None:
        self._connection = connection
        self._resting = resting

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while isinstance(event := await self._connection.next_event(), h11.Data):
            yield bytes(event.data)

    async def aclose(self) -> None:
        if self._connection.rested():
            self._resting.append(self._connection)
        else:
            self._connection.close()


@contextmanager
def _as_httpx(kind: type[httpx.NetworkError]) -> Iterator[None]:
    """What sockets and h11 raise, as httpx's own transports would say it."""
    try:
        yield
    except h11.RemoteProtocolError as failure:
        raise httpx.RemoteProtocolError(str(failure)) from failure
    except h11.LocalProtocolError as failure:
        raise httpx.LocalProtocolError(str(failure)) from failure
    except OSError as failure:
        raise kind(str(failure)) from failure
