"""Several requests in one: each is answered as if it had come alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from probe_agent.errors import NoAnswer, ProbeError
from probe_agent.server.access.roles import Access
from probe_agent.server.app import create_app
from probe_agent.targets import TargetDirectory
from probe_agent.tokens import Tokens
from probe_agent.wire import Health, HostClock, StacksRequest, TableList
from probe_agent.wire.batch import FRAME
from probe_cli.client import Client
from probe_cli.client.batch import Batches
from probe_cli.endpoint import TcpServer

T = TypeVar("T")

AT = TcpServer("127.0.0.1", 8080)


def asked(question: Callable[[httpx.AsyncClient], Awaitable[T]], access: Access | None = None, **headers: str) -> T:
    """What `question` gets of a host server without targets."""

    async def asking() -> T:
        transport = httpx.ASGITransport(create_app(TargetDirectory(()), access=access))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080", headers=headers) as http:
            return await question(http)

    return asyncio.run(asking())


def test_what_is_asked_at_the_same_time_travels_together_and_each_gets_its_own_answer() -> None:
    sent: list[str] = []

    async def note(request: httpx.Request) -> None:
        sent.append(request.url.path)

    async def question(http: httpx.AsyncClient) -> Sequence[object]:
        http.event_hooks["request"].append(note)
        clients = [Client(AT, http, {"rank": str(rank)}, batches) for batches in [Batches(http)] for rank in range(3)]
        return await asyncio.gather(
            clients[0].get(Health, "/v1/health"),
            clients[1].get(HostClock, "/v1/clock"),
            clients[2].get(TableList, "/v1/tables"),
            return_exceptions=True,
        )

    health, clock, tables = asked(question)

    assert sent == ["/v1/batch"]
    assert isinstance(health, Health)
    assert isinstance(clock, HostClock)
    assert isinstance(tables, NoAnswer)
    assert "rank 2" in tables.message


def test_a_batch_gives_nobody_more_rights() -> None:
    access = Access(Tokens("control", "read", "a test"))

    async def question(http: httpx.AsyncClient) -> Sequence[object]:
        client = Client(AT, http, {}, Batches(http))
        return await asyncio.gather(
            client.get(Health, "/v1/health"),
            client.send(Health, "POST", "/v1/backtrace", StacksRequest(True, False, True, False, False, False)),
            return_exceptions=True,
        )

    health, inspected = asked(question, access, Authorization="Bearer read")

    assert isinstance(health, Health)
    assert isinstance(inspected, ProbeError)
    assert "for reading only" in inspected.message


@pytest.mark.parametrize("path", ["/v1/batch", "/v1/b%61tch?x", "/docs", "http://elsewhere/v1/health"])
def test_a_batch_has_requests_to_the_api_only_and_no_batch(path: str) -> None:
    async def question(http: httpx.AsyncClient) -> httpx.Response:
        return await http.post("/v1/batch", json={"items": [{"path": path}]})

    answer = asked(question)

    assert answer.status_code == 400
    assert "cannot be part of a batch" in answer.json()["error"]["message"]


def test_a_body_that_is_not_there_is_refused() -> None:
    async def question(http: httpx.AsyncClient) -> httpx.Response:
        return await http.post("/v1/batch", json={"items": [{"path": "/v1/query", "body": 1}], "bodies": ["{}"]})

    answer = asked(question)

    assert answer.status_code == 400


def from_server(status: int, answer: bytes, alone: bytes = b"") -> list[object]:
    """What two clients get that ask at the same time: the server answers a batch so, and a single question with
    `alone`."""

    async def server(scope: Scope, receive: Receive, send: Send) -> None:
        is_batch = scope["path"] == "/v1/batch"
        await send({"type": "http.response.start", "status": status if is_batch else 200, "headers": []})
        await send({"type": "http.response.body", "body": answer if is_batch else alone})

    async def asking() -> list[object]:
        transport = httpx.ASGITransport(server)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as http:
            batches = Batches(http)
            clients = [Client(AT, http, {"rank": str(rank)}, batches) for rank in range(2)]
            return list(
                await asyncio.gather(*(one.get(Health, "/v1/health") for one in clients), return_exceptions=True)
            )

    return asyncio.run(asking())


HEALTH = json.dumps({"version": "1", "host": "node1", "targets": 1}).encode()


def test_an_older_server_is_asked_one_by_one() -> None:
    told = from_server(404, b"{}", alone=HEALTH)

    assert [type(one) for one in told] == [Health, Health]


def test_an_answer_that_breaks_off_is_no_answer_for_those_it_has_not_told() -> None:
    pieces = [json.dumps({"status": 200}).encode(), HEALTH, b""]
    whole = b"".join(FRAME.pack(1, len(piece)) + piece for piece in pieces)

    first, second = from_server(200, whole + FRAME.pack(0, 500) + b"{")

    assert isinstance(first, NoAnswer)
    assert "broke off its answer" in first.message
    assert isinstance(second, Health)


def test_an_answer_to_a_question_that_nobody_has_asked_is_refused() -> None:
    told = from_server(200, FRAME.pack(7, 0))

    assert [type(one) for one in told] == [NoAnswer, NoAnswer]
