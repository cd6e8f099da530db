"""One open connection to one endpoint: asks over HTTP, and turns every failure into an error of ours.

Runs in the CLI.
"""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode

import httpx

from probe_agent import errors
from probe_agent.errors import NoAnswer, ProbeError
from probe_agent.wire import decode
from probe_cli.endpoint import Endpoint, TcpServer, TlsServer, UnixServer

from .batch import Batches, NotBatched

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Client", "Data"]

T = TypeVar("T")


@dataclass(frozen=True)
class Data:
    """An answer in bytes (an Arrow stream, a picture), and what was said about it."""

    body: bytes
    notes: list[str]
    #: Of each table that a statement names, in lower case, the shape, as the wire calls it.
    tables: dict[str, str]
    #: Recorded tables of the statement without a row in any target.
    missing: list[str]


class Client:
    """Asks one endpoint. `selector` is the query parameter that picks the target behind it. Clients of one host server
    have `batches` in common."""

    def __init__(
        self,
        endpoint: Endpoint,
        http: httpx.AsyncClient,
        selector: dict[str, str],
        batches: Batches | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._http = http
        self._selector = selector
        self._batches = batches

    def beside(self, endpoint: Endpoint) -> Client:
        """The client for another endpoint behind the same host server."""
        return Client(endpoint, self._http, endpoint.selector, self._batches)

    async def get(self, kind: type[T], path: str, **params: str) -> T:
        """The `kind` at `path`."""
        return self._read(kind, await self._whole("GET", path, params, None))

    async def timed(self, kind: type[T], path: str) -> tuple[T, float, float]:
        """The same in a request of its own, and when that was sent and its answer came, in seconds since 1970."""
        async with self._answer("GET", path) as response:
            return self._read(kind, await response.aread()), *response.extensions["times"]

    async def send(self, kind: type[T], method: str, path: str, body: DataclassInstance | None = None) -> T:
        """The `kind` that `path` answers to `body`."""
        return self._read(kind, await self._whole(method, path, {}, body))

    async def lines(self, kind: type[T], path: str, body: DataclassInstance) -> AsyncIterator[T]:
        """The lines `path` streams in answer to `body`, as they come; leaving early cancels at the other end."""
        async with self._answer("POST", path, body=body) as response:
            async for line in response.aiter_lines():
                if line.strip():
                    yield self._read(kind, line)

    async def data(
        self,
        path: str,
        body: DataclassInstance,
        accept: str = "*/*",
        received: Callable[[int], None] = lambda num_bytes: None,
    ) -> Data:
        """What `path` answers to `body`, as bytes. `received` is told how many bytes have come as they come; what it
        raises ends the transfer."""
        async with self._answer("POST", path, body=body, accept=accept) as response:
            chunks = []
            async for chunk in response.aiter_bytes():
                received(len(chunk))
                chunks.append(chunk)
            notes = response.headers.get("X-Probe-Notes", "[]")
            tables = response.headers.get("X-Probe-Tables", "{}")
            missing = response.headers.get("X-Probe-Missing", "[]")
        try:
            said = [str(note) for note in json.loads(notes)]
            shapes = {name.lower(): str(told) for name, told in json.loads(tables).items()}
            return Data(b"".join(chunks), said, shapes, [str(name) for name in json.loads(missing)])
        except (ValueError, TypeError, AttributeError) as failure:
            raise NoAnswer(
                f"{self.endpoint} answered with notes that Probe cannot read ({failure})",
                "check that this is the port of `probe serve`, and that its version is this one",
            ) from failure

    def _read(self, kind: type[T], data: bytes | str) -> T:
        try:
            return decode(kind, json.loads(data))
        except ValueError as failure:
            raise NoAnswer(
                f"{self.endpoint} answered with something that Probe cannot read ({failure})",
                "check that this is the port of `probe serve`, and that its version is this one",
            ) from failure

    async def _whole(self, method: str, path: str, params: dict[str, str], body: DataclassInstance | None) -> bytes:
        if self._batches is not None and (method, body is None) in (("GET", True), ("POST", False)):
            query = urlencode({**self._selector, **params})
            said = None if body is None else json.dumps(asdict(body))
            try:
                status, data = await self._batches.ask(f"{path}?{query}" if query else path, said)
            except NotBatched:
                pass
            except (httpx.HTTPError, httpx.InvalidURL) as failure:
                raise self._error_of(failure) from failure
            else:
                if status >= 400:
                    raise _error_in(data, status, self.endpoint)
                return data
        async with self._answer(method, path, params=params, body=body) as response:
            return await response.aread()

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, str] | None = None,
        body: DataclassInstance | None = None,
        accept: str = "application/json",
    ) -> AsyncIterator[httpx.Response]:
        begun = False
        try:
            async with self._http.stream(
                method,
                path,
                params={**self._selector, **(params or {})},
                json=None if body is None else asdict(body),
                headers={"Accept": accept},
            ) as response:
                if response.is_error:
                    raise _error_in(await response.aread(), response.status_code, self.endpoint)
                begun = True
                yield response
        except (httpx.HTTPError, httpx.InvalidURL) as failure:
            raise self._error_of(failure, begun=begun) from failure

    def _error_of(self, failure: httpx.HTTPError | httpx.InvalidURL, *, begun: bool = False) -> ProbeError:
        """Return what httpx has raised as an error of ours."""
        if isinstance(failure, httpx.InvalidURL):
            return errors.BadRequest(f"{self.endpoint} is not a valid address: {failure}", "correct the host name")
        if begun:
            return NoAnswer(
                f"{self.endpoint}: the host server ended, or hung up, before its answer was whole: {failure}",
                "try again",
            )
        return no_answer(self.endpoint, failure)


def no_answer(endpoint: Endpoint, failure: httpx.HTTPError) -> NoAnswer:
    """What was tried, what was seen, what to try next."""
    server = "probe serve"
    is_tls = isinstance(endpoint, TlsServer)
    if isinstance(endpoint, TcpServer):
        server = f"probe serve --listen {endpoint.authority}"
    elif isinstance(endpoint, UnixServer):
        server = f"probe serve --unix {endpoint.path}"
    seen = str(failure) or type(failure).__name__
    if isinstance(failure, httpx.ConnectTimeout):
        return NoAnswer(
            f"{endpoint} did not accept a connection in time", "check the address, and firewalls on the way"
        )
    if hint := _tls_hint(seen):
        return NoAnswer(f"TLS handshake with {endpoint} failed: {seen}", hint)
    if isinstance(failure, httpx.ConnectError):
        if f"[Errno {errno.ECONNREFUSED}]" in seen:
            return NoAnswer(f"{endpoint} refused the connection", f"start the host server there: {server}")
        if "Name or service not known" in seen or "getaddrinfo" in seen or "name resolution" in seen:
            return NoAnswer(f"{endpoint}: no host has that name ({seen})", "check the spelling of the name")
        if "No such file" in seen:
            return NoAnswer(f"{endpoint}: there is no such socket", f"start the host server: {server}")
        return NoAnswer(f"{endpoint} could not be reached: {seen}", f"start the host server there: {server}")
    # A server that wants a certificate may break off before its alert has been read.
    if isinstance(failure, httpx.RemoteProtocolError) or (is_tls and f"[Errno {errno.ECONNRESET}]" in seen):
        return NoAnswer(
            f"{endpoint} broke off its answer, or is not a host server of Probe: {seen}",
            "check that this is the port of `probe serve`; "
            + (
                "if it asks for a client certificate, set PROBE_CLIENT_CERT"
                if is_tls
                else "if it uses TLS, write https://"
            ),
        )
    return NoAnswer(f"{endpoint} did not answer: {seen}", "try again, or look at the output of the host server")


def _tls_hint(seen: str) -> str:
    """What to try when TLS could not be agreed on; empty when it is not about that."""
    if "CERTIFICATE_VERIFY_FAILED" in seen:
        return "set PROBE_CA to the file of the CA that signed the server's certificate; HOST must be a name in it"
    if "CERTIFICATE_REQUIRED" in seen or "alert" in seen:
        return (
            "if it asks for a client certificate, set PROBE_CLIENT_CERT (and PROBE_CLIENT_KEY, if that is another file)"
        )
    return "if the server does not use TLS, leave out https://" if "SSL" in seen else ""


def _error_in(data: bytes, status: int, endpoint: Endpoint) -> ProbeError:
    """The server's error as the class it was there, so that it exits with the same code."""
    try:
        error = json.loads(data)["error"]
        kind, message, hint = str(error.get("kind", "")), str(error["message"]), str(error.get("hint") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        text = data.decode("utf-8", "replace").strip().splitlines()
        return NoAnswer(
            f"{endpoint} answered with status {status}: {text[0][:200] if text else 'nothing'}",
            "check that this is the port of `probe serve`",
        )
    known = getattr(errors, kind, None) if kind in errors.__all__ else None
    return (known or ProbeError)(message, hint)
