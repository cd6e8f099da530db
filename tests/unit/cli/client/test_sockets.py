"""The transport over asyncio's sockets: the connection that a request uses, and the error without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import time

import httpx
import pytest

from probe_cli.client import sockets
from probe_cli.client.sockets import SocketTransport

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
CLOSED = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhi"


@asynccontextmanager
async def serving(
    answers: list[bytes], *, hangs_up: bool = False, check: Callable[[], None] | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, list[int]]]:
    """A client of a server that gives `answers` in turn, and the connection of each request."""
    asked: list[int] = []
    num_connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        own = num_connections = num_connections + 1
        while await reader.read(1 << 16):
            asked.append(own)
            writer.write(answers[len(asked) - 1])
            if hangs_up or answers[len(asked) - 1] is CLOSED:
                break
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = SocketTransport(partial(asyncio.open_connection, "127.0.0.1", port), check)
    async with httpx.AsyncClient(transport=transport, base_url="http://here", timeout=30) as client:
        yield client, asked
    server.close()


def test_a_connection_serves_the_next_question_when_the_answer_was_whole() -> None:
    async def ask() -> tuple[list[str], list[int]]:
        async with serving([WHOLE, CHUNKED, CLOSED, WHOLE]) as (client, asked):
            return [(await client.get("/")).text for _ in range(4)], asked

    texts, asked = asyncio.run(ask())

    assert texts == ["hi"] * 4
    assert asked == [1, 1, 1, 2]


def test_the_times_of_an_answer_are_those_of_the_way_and_not_of_connecting_or_reading() -> None:
    async def ask() -> tuple[float, float, float, float]:
        async with serving([WHOLE]) as (client, _):
            transport = client._transport
            assert isinstance(transport, SocketTransport)
            connect = transport._connect

            async def slowly() -> sockets.Opened:
                await asyncio.sleep(0.5)
                return await connect()

            transport._connect = slowly
            began = time()
            async with client.stream("GET", "/") as response:
                await asyncio.sleep(0.5)
                await response.aread()
            return began, *response.extensions["times"], time()

    began, sent, got, ended = asyncio.run(ask())

    assert sent - began >= 0.5
    assert 0 < got - sent < 0.5
    assert ended - got >= 0.5


def test_an_answer_that_is_left_early_takes_its_connection_with_it() -> None:
    async def ask() -> list[int]:
        async with serving([WHOLE[:-1], WHOLE]) as (client, asked):
            async with client.stream("GET", "/"):
                pass
            await client.get("/")
            return asked

    assert asyncio.run(ask()) == [1, 2]


def test_two_questions_at_once_take_two_connections() -> None:
    async def ask() -> list[int]:
        async with serving([WHOLE] * 3) as (client, asked):
            await asyncio.gather(client.get("/"), client.get("/"))
            await client.get("/")
            return asked

    assert sorted(asyncio.run(ask())[:2]) == [1, 2]


def test_one_that_has_rested_for_long_or_was_closed_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(*, hangs_up: bool) -> list[int]:
        async with serving([WHOLE, WHOLE], hangs_up=hangs_up) as (client, asked):
            await client.get("/")
            await asyncio.sleep(0.1)
            await client.get("/")
            return asked

    closed = asyncio.run(ask(hangs_up=True))
    monkeypatch.setattr(sockets, "KEPT_S", 0.05)
    rested = asyncio.run(ask(hangs_up=False))

    assert closed == rested == [1, 2]


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n", WHOLE[:-1], b"<html>"])
def test_an_answer_that_breaks_off_or_is_none_is_an_error_of_the_protocol(answer: bytes) -> None:
    async def ask() -> None:
        async with serving([answer], hangs_up=True) as (client, _):
            await client.get("/")

    with pytest.raises(httpx.RemoteProtocolError, match=r"."):
        asyncio.run(ask())


def test_an_address_without_a_listener_is_named_with_its_port() -> None:
    async def ask() -> None:
        transport = SocketTransport(partial(asyncio.open_connection, "127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get("http://127.0.0.1:1/")

    with pytest.raises(httpx.ConnectError, match=r"\[Errno 111\]"):
        asyncio.run(ask())


def test_a_token_goes_only_over_a_connection_that_was_looked_at_before_and_after() -> None:
    looks: list[str] = []
    token = {"Authorization": "Bearer x"}

    async def ask() -> list[int]:
        async with serving([WHOLE] * 3, check=lambda: looks.append("look")) as (client, asked):
            await client.get("/")
            await client.get("/", headers=token)
            await client.get("/", headers=token)
            return asked

    assert asyncio.run(ask()) == [1, 2, 2]
    assert looks == ["look", "look"]


def test_a_server_refused_after_connecting_receives_nothing() -> None:
    looks: list[bool] = []

    def check() -> None:
        looks.append(True)
        if len(looks) == 2:
            raise PermissionError("a stranger listens")

    async def ask() -> list[int]:
        async with serving([WHOLE], check=check) as (client, asked):
            with pytest.raises(PermissionError, match="a stranger"):
                await client.get("/", headers={"Authorization": "Bearer x"})
            await asyncio.sleep(0.1)
            return asked

    assert asyncio.run(ask()) == []
