"""The token of a request: from our own file, created meanwhile, or none."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from probe_agent.tokens import server_tokens
from probe_cli.client.token_auth import TokenAuth


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of settings without a token."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("PROBE_TOKEN", "PROBE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_token_that_is_made_while_we_ask_is_sent_once_more() -> None:
    flow = TokenAuth().auth_flow(httpx.Request("GET", "http://node17:1/"))

    first = "authorization" in next(flow).headers
    token = server_tokens().control
    second = flow.send(httpx.Response(401)).headers["authorization"]

    assert not first
    assert second == f"Bearer {token}"
    with pytest.raises(StopIteration):
        flow.send(httpx.Response(401))


@pytest.mark.parametrize("token", ["", "g" * 32])
def test_a_question_that_was_refused_with_all_we_have_is_not_put_again(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_TOKEN", token)
    flow = TokenAuth().auth_flow(httpx.Request("GET", "http://node17:1/"))

    sent = next(flow).headers.get("authorization")

    assert sent == (f"Bearer {token}" if token else None)
    with pytest.raises(StopIteration):
        flow.send(httpx.Response(401))
