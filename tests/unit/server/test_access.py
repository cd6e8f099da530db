"""Access by token: to which endpoints, and under which host names."""

from __future__ import annotations

import asyncio
import hmac

import httpx
import pytest

from probe_agent.server import routes
from probe_agent.server.access import roles
from probe_agent.server.access.roles import Access
from probe_agent.server.app import create_app
from probe_agent.targets import TargetDirectory
from probe_agent.tokens import Tokens

TOKENS = Tokens("c" * 32, "r" * 32, "the test")


def ask(method: str, path: str, **headers: str) -> httpx.Response:
    async def asking() -> httpx.Response:
        app = create_app(TargetDirectory(()), access=Access(TOKENS))
        transport = httpx.ASGITransport(app, client=("192.0.2.7", 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://node17:8080") as client:
            return await client.request(method, path, headers={name.title(): value for name, value in headers.items()})

    return asyncio.run(asking())


def bearer(token: str) -> str:
    return f"Bearer {token}"


@pytest.mark.parametrize("role", ["read", "control"])
def test_each_endpoint_is_open_to_its_role_and_to_no_lesser_one(role: str) -> None:
    for needed, router in [*(("read", each) for each in routes.READ), *(("control", each) for each in routes.CONTROL)]:
        for route in router.routes:
            method = next(iter(route.methods))
            answer = ask(method, route.path, authorization=bearer(TOKENS.control if role == "control" else "r" * 32))
            unknown = ask(method, route.path)

            may = role == "control" or needed == "read"
            assert (answer.status_code == 403) is not may, (method, route.path, answer.text)
            assert unknown.status_code == 401


@pytest.mark.parametrize(
    "sent", ["", "Bearer", "Bearer ", "Bearer wrong", "Basic " + "c" * 32, "c" * 32, bearer("c" * 31), bearer("C" * 32)]
)
def test_anything_but_the_token_is_rejected(sent: str) -> None:
    answer = ask("GET", "/v1/health", authorization=sent)

    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["error"]["kind"] == "Unauthorized"
    assert "PROBE_TOKEN" in answer.json()["error"]["hint"]


def test_an_unknown_path_reveals_nothing_without_a_token() -> None:
    assert ask("GET", "/openapi.json").status_code == 401
    assert ask("GET", "/no/such").status_code == 401
    assert ask("GET", "/no/such", authorization=bearer(TOKENS.control)).status_code == 404


@pytest.mark.parametrize("host", ["node17:8080", "node17.cluster.example:8080", "10.0.0.17:8080", "localhost:9"])
def test_with_the_token_every_name_of_the_server_will_do(host: str) -> None:
    assert ask("GET", "/v1/health", host=host, authorization=bearer(TOKENS.control)).status_code == 200


def test_pages_of_the_server_itself_may_ask_and_others_may_not() -> None:
    own = {"host": "node17:8080", "authorization": bearer(TOKENS.control)}

    assert ask("GET", "/v1/health", origin="http://node17:8080", **own).status_code == 200
    assert ask("GET", "/v1/health", origin="http://node18:8080", **own).status_code == 403


def test_tokens_are_compared_in_constant_time_and_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def watched(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return real(one, other)

    real = hmac.compare_digest
    monkeypatch.setattr(roles.hmac, "compare_digest", watched)

    for token in ("x", TOKENS.control, "r" * 32):
        ask("GET", "/v1/health", authorization=bearer(token))

    assert len(compared) == 6
    assert all(len(one) == len(other) == 32 for one, other in compared)


def test_tokens_are_never_shown() -> None:
    assert "cccc" not in repr(TOKENS)
    assert "rrrr" not in repr(TOKENS)
