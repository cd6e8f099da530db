"""Requests that are rejected before they are read: foreign host names, foreign pages, endless bodies."""

from __future__ import annotations

import httpx
import pytest

from probe_agent.server.app import create_app
from probe_agent.targets import TargetDirectory


def ask(headers: dict[str, str], content: bytes = b"") -> httpx.Response:
    import asyncio

    async def asking() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(TargetDirectory()))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
            return await client.request("POST" if content else "GET", "/v1/health", headers=headers, content=content)

    return asyncio.run(asking())


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "[::1]:9", "unix", "127.8.9.1"])
def test_loopback_names_are_answered(host: str) -> None:
    assert ask({"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8080", ""])
def test_other_names_are_turned_away(host: str) -> None:
    answer = ask({"Host": host})

    assert answer.status_code == 421
    assert answer.json()["error"]["hint"]


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1.evil.example", "http://127.0.0.1:3000", "http://localhost"],
)
def test_pages_of_other_sites_may_not_ask(origin: str) -> None:
    assert ask({"Origin": origin}).status_code == 403


def test_a_page_of_our_own_may() -> None:
    assert ask({"Origin": "http://localhost:8080", "Host": "localhost:8080"}).status_code == 200


def test_a_body_beyond_the_limit_is_refused_by_its_length() -> None:
    assert ask({}, b"x" * (2 << 20)).status_code == 413
