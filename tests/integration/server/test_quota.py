"""Limits of a query: with the read token, those that the server's owner allows."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from support.commands import probe

from .served import Served, serving, training

ARROW = {"Accept": "application/vnd.apache.arrow.stream"}
LONG = "SELECT repeat('x', 1000) FROM range(1000000000)"
WIDE = "SELECT list(range) FROM range(100000000)"  # DuckDB itself needs more than there is
ENDLESS = "SELECT range FROM range(1000000000000) WHERE range % 1000000 = 0"  # a row now and then


@pytest.fixture(scope="module")
def pid() -> Iterator[int]:
    with training() as pid:
        yield pid


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with default limits."""
    with serving(tmp_path_factory.mktemp("usual"), "--listen", "TCP") as server:
        yield server


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose owner allows readers less than the default."""
    limits = {"PROBE_READ_MEMORY": "16", "PROBE_READ_TIMEOUT": "5.5"}
    with serving(tmp_path_factory.mktemp("strict"), "--listen", "TCP", **limits) as server:
        yield server


def ask(
    server: Served, pid: int, role: str, sql: str = "SELECT 7", headers: dict[str, str] | None = None, **limits: object
) -> httpx.Response:
    body = {"sql": sql, **limits}
    return server.ask("POST", f"/v1/query?pid={pid}", role, json=body, headers=headers or {})


def error(answer: httpx.Response) -> tuple[int, str, str]:
    said = answer.json()["error"]
    return answer.status_code, said["message"], said["hint"]


@pytest.mark.parametrize(
    ("limit", "allowed", "setting"),
    [
        ({"memory_mb": 513}, "at most 512 MB of memory, not 513", "PROBE_READ_MEMORY"),
        ({"timeout_s": 10.5}, "at most 10 s, not 10.5", "PROBE_READ_TIMEOUT"),
        ({"timeout_s": "Infinity"}, "at most 10 s, not inf", "PROBE_READ_TIMEOUT"),
    ],
)
def test_readers_may_not_ask_for_more_than_the_default(
    server: Served, pid: int, limit: dict[str, object], allowed: str, setting: str
) -> None:
    status, message, hint = error(ask(server, pid, "read", **limit))

    assert status == 403
    assert allowed in message
    assert setting in hint
    assert ask(server, pid, "read", memory_mb=512, timeout_s=10).json()["rows"] == [[7]]


def test_with_the_token_for_everything_and_on_the_unix_socket_it_is_for_the_asker_to_say(
    server: Served, pid: int
) -> None:
    control = ask(server, pid, "control", memory_mb=2048, timeout_s=60)
    words = (f"/pid={pid}", "query", "SELECT 7 AS n", "--format", "csv", "--memory", "2048", "--timeout", "60")
    owner = probe("-t", f"unix:{server.unix}/{words[0]}", *words[1:])

    assert control.json()["rows"] == [[7]]
    assert owner.stdout.split() == ["n", "7"], owner.stderr


def test_the_owner_may_allow_more(tmp_path: Path, pid: int) -> None:
    with serving(tmp_path, "--listen", "TCP", "--read-memory", "2048", "--read-timeout", "60") as server:
        allowed = ask(server, pid, "read", memory_mb=2048, timeout_s=60)
        beyond = ask(server, pid, "read", memory_mb=2049)

    assert allowed.json()["rows"] == [[7]]
    assert error(beyond)[:2] == (
        403, "with a token for reading a query may take at most 2,048 MB of memory, not 2,049"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "seen"),
    [
        (WIDE, "needs more than 16 MB"),
        (LONG, "longer than the 16 MB"),
        (ENDLESS, "did not end within 5.5 s"),
    ],
)
@pytest.mark.parametrize(
    "headers", [pytest.param({}, id="json"), pytest.param(ARROW, id="arrow", marks=pytest.mark.long)]
)
def test_the_owner_may_allow_less_and_a_question_that_does_not_ask_for_more_is_held_to_it(
    strict: Served, pid: int, sql: str, seen: str, headers: dict[str, str]
) -> None:
    status, message, hint = error(ask(strict, pid, "read", sql, headers, max_rows=10**9, memory_mb=100))
    beyond = ask(strict, pid, "read", memory_mb=513)

    assert (status, beyond.status_code) == (422, 403)
    assert seen in message
    assert "may take 16 MB and 5.5 s here" in hint
    assert "PROBE_READ_MEMORY" in hint
    assert ask(strict, pid, "read").json()["rows"] == [[7]]


@pytest.mark.parametrize("headers", [{}, ARROW], ids=["json", "arrow"])
def test_an_answer_counts_as_the_querys_memory_for_every_role(
    server: Served, pid: int, headers: dict[str, str]
) -> None:
    status, message, hint = error(ask(server, pid, "control", LONG, headers, max_rows=10**9, memory_mb=64))
    enough = ask(server, pid, "control", LONG, headers, max_rows=1000, memory_mb=64)

    assert status == 422
    assert "longer than the 64 MB" in message
    assert "--memory" in hint
    assert enough.status_code == 200
    assert len(enough.content) > 1_000_000


def test_busy_readers_leave_slots_for_the_full_token(server: Served, pid: int) -> None:
    body = json.dumps({"sql": ENDLESS})
    head = (
        f"POST /v1/query?pid={pid} HTTP/1.1\r\nHost: x\r\nAuthorization: {server.token('read')['Authorization']}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with ExitStack() as busy:
        readers = []
        for _ in range(10):
            reader = busy.enter_context(socket.create_connection(server.tcp.split(":"), timeout=30))
            reader.sendall((head + body).encode())
            readers.append(reader)
        control = ask(server, pid, "control")
        answered, _, _ = select.select(readers, (), (), 0)

    assert control.json()["rows"] == [[7]]
    assert answered == []
    assert ask(server, pid, "read").json()["rows"] == [[7]]  # those who have hung up take no turn


def test_the_command_line_says_whose_limit_it_is(server: Served, pid: int) -> None:
    token = server.token("read")["Authorization"].split()[1]
    endpoint = f"{server.tcp}/pid={pid}"

    one = probe("-t", endpoint, "query", "SELECT 7", "--memory", "2048", PROBE_TOKEN=token)
    two = probe("-t", endpoint, "-t", f"{server.tcp}", "query", "SELECT * FROM python.steps", "--memory", "2048",
                PROBE_TOKEN=token)  # fmt: skip

    for done in (one, two):
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        assert done.stderr.count("512 MB of memory, not 2,048") == 1  # it is the question's fault, not each host's
        assert "PROBE_READ_MEMORY" in done.stderr
        assert "Traceback" not in done.stderr
