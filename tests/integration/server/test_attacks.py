"""Attacks on a host server, each with its result. docs/security.md lists them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from support.commands import probe
from support.ports import free_address
from support.waiting import until

from .served import Served, serving, training

NOBODY = 65534
NO_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that every user of this host can enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A host server with its own tokens, on TCP; for attacks that it survives."""
    with serving(tmp_path_factory.mktemp("server"), "--listen", "TCP") as server:
        yield server


@pytest.fixture(scope="module")
def target() -> Iterator[int]:
    """A target that waits."""
    with training() as pid:
        yield pid


ASKS = """
import os, socket, sys
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(30)
    connection.connect(sys.argv[1])
    connection.sendall(b"GET /v1/targets HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
    print(connection.makefile().read())
"""


def ask_as(uid: int, path: str) -> subprocess.CompletedProcess[str]:
    """Return what a process of another user gets from the unix socket."""
    return subprocess.run([sys.executable, "-c", ASKS, path, str(uid)], capture_output=True, text=True, timeout=60)


@NO_ROOT
def test_the_unix_socket_is_closed_to_other_users_twice(open_folder: Path) -> None:
    with serving(open_folder) as server:
        by_its_mode = ask_as(NOBODY, server.unix)
        os.chmod(server.unix, 0o666)  # as a careless user might
        by_the_kernels_word = ask_as(NOBODY, server.unix)
        own = ask_as(0, server.unix)

    assert "PermissionError" in by_its_mode.stderr
    assert by_the_kernels_word.stdout.startswith("HTTP/1.1 403"), by_the_kernels_word.stderr
    error = json.loads(by_the_kernels_word.stdout.splitlines()[-1])["error"]
    assert error["kind"] == "Forbidden"
    assert f"not to uid {NOBODY}" in error["message"]
    assert own.stdout.startswith("HTTP/1.1 200")


def test_no_token_and_wrong_ones_get_nothing_not_even_the_list_of_endpoints(server: Served) -> None:
    for path in ("/v1/targets", "/v1/health", "/openapi.json", "/docs", "/v1/dashboard/session"):
        nothing = server.ask("GET", path)
        wrong = server.ask("GET", path, headers={"Authorization": "Bearer " + "A" * 43})

        assert (nothing.status_code, wrong.status_code) == (401, 401)
        assert set(nothing.json()) == {"error"}


def test_the_token_is_never_printed(server: Served) -> None:
    assert str(server.tokens / "token") in server.said
    for role in ("control", "read"):
        token = server.token(role)["Authorization"].split()[1]
        assert token not in server.said
        assert token not in server.ask("GET", "/v1/targets", headers={"Authorization": "Bearer x" + token}).text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/eval"),
        ("POST", "/v1/complete"),
        ("PATCH", "/v1/config"),
        ("POST", "/v1/profile/cpu"),
        ("POST", "/v1/profile/steps"),
        ("POST", "/v1/watch"),
        ("POST", "/v1/detach"),
        ("POST", "/v1/clean"),
    ],
)
def test_the_token_for_reading_controls_nothing(server: Served, method: str, path: str) -> None:
    answer = server.ask(method, path, "read", json={"code": "1"})

    assert answer.status_code == 403
    assert answer.json()["error"]["kind"] == "Forbidden"
    assert server.ask("GET", "/v1/targets", "read").status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/v1/eval/", "//v1/eval", "/v1//eval", "/v1/./eval", "/v1/query/../eval", "/v1/%65val", "/v1/eval%00", "/V1/EVAL",
     "/v1/eval?rank=0", "/v1/eval;x", "/v1/%2e%2e/v1/eval", "/../../etc/passwd", "/v1/health/..%2feval"],
)  # fmt: skip
def test_no_spelling_of_a_path_leads_past_the_role(server: Served, path: str) -> None:
    for method in ("POST", "GET", "PUT", "HEAD", "OPTIONS"):
        with socket.create_connection(server.tcp.split(":"), timeout=30) as connection:  # httpx would tidy the path
            token = server.token("read")["Authorization"]
            head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\nContent-Type: application/json"
            body = '{"code": "1"}'
            connection.sendall(f"{head}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            status = connection.makefile("rb").readline().split()[1]

        assert status in (b"403", b"404", b"405", b"307", b"400"), (method, status)


def test_a_page_in_a_browser_gets_nothing_under_a_name_of_its_own(server: Served, tmp_path: Path) -> None:
    rebound = {"Host": "rebound.example:8080", "Origin": "http://rebound.example:8080"}
    with serving(tmp_path, "--listen", "TCP", "--insecure") as open_server:
        for path in ("/v1/targets", "/v1/health"):
            assert server.ask("GET", path, headers=rebound).status_code == 401
            assert open_server.ask("GET", path, headers=rebound).status_code == 421
        foreign = open_server.ask("POST", "/v1/eval", headers={"Origin": "http://evil.example"}, json={"code": "1"})
        preflight = server.ask("OPTIONS", "/v1/eval", headers={"Origin": "http://evil.example"})

    assert foreign.status_code == 403
    assert preflight.status_code == 401
    assert not [name for name in preflight.headers if name.startswith("access-control")]


def test_a_header_cannot_say_who_asks(server: Served) -> None:
    answer = server.ask("GET", "/v1/health", headers={"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1"})

    assert answer.status_code == 401


def test_without_a_token_only_loopback_is_served_and_only_if_that_is_spelled_out(tmp_path: Path) -> None:
    refused = probe("serve", "--listen", "0.0.0.0:48123", "--insecure", "--unix", f"{tmp_path}/host.sock")
    with serving(tmp_path, "--listen", "TCP", "--insecure") as server:
        answered = server.ask("GET", "/v1/health")

    assert refused.returncode == 2
    assert "without a token" in refused.stderr
    assert answered.status_code == 200
    assert "no token is wanted" in server.said


def test_beyond_loopback_a_token_is_required_and_plain_http_is_warned_of(tmp_path: Path) -> None:
    port = free_address().split(":")[1]
    with serving(tmp_path, "--listen", f"0.0.0.0:{port}") as server:
        answers = [
            httpx.get(f"http://{socket.gethostname()}:{port}/v1/health", headers=headers, trust_env=False, timeout=30)
            for headers in ({}, server.token("read"))
        ]

    assert [answer.status_code for answer in answers] == [401, 200]
    assert "warning: without TLS" in server.said


def test_the_command_line_is_let_in_by_the_file_of_its_user_or_by_its_environment(
    server: Served, tmp_path: Path
) -> None:
    token = server.token("read")["Authorization"].split()[1]

    owner = probe("-t", server.tcp, "list", XDG_CONFIG_HOME=str(server.tokens.parent))
    reader = probe("-t", server.tcp, "list", PROBE_TOKEN=token)
    named = probe("-t", server.tcp, "list", PROBE_TOKEN_FILE=str(server.tokens / "token.read"))
    stranger = probe("-t", server.tcp, "list", XDG_CONFIG_HOME=str(tmp_path))
    forbidden = probe("-t", server.tcp, "eval", "1", PROBE_TOKEN=token)

    assert [owner.returncode, reader.returncode, named.returncode] == [0, 0, 0], owner.stderr
    assert (stranger.returncode, forbidden.returncode) == (1, 1)
    assert "try: put it into PROBE_TOKEN" in stranger.stderr
    assert "this token is for reading only" in forbidden.stderr


LISTENS = """
import os, socket, sys
os.setgroups([])
os.setuid(int(sys.argv[1]))
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
listener.settimeout(60)
connection, _ = listener.accept()
print(connection.recv(4096).decode(), flush=True)
"""


@NO_ROOT
def test_another_user_who_waits_on_the_port_does_not_get_our_token(server: Served) -> None:
    own = {"XDG_CONFIG_HOME": str(server.tokens.parent)}
    with subprocess.Popen([sys.executable, "-c", LISTENS, str(NOBODY)], stdout=subprocess.PIPE, text=True) as thief:
        assert thief.stdout is not None
        port = thief.stdout.readline().strip()

        done = probe("-t", f"127.0.0.1:{port}", "list", **own)
        by_name = probe("-t", f"localhost:{port}", "list", **own)
        thief.kill()
        stolen = thief.stdout.read()

    assert (done.returncode, by_name.returncode) == (1, 1)
    assert f"uid {NOBODY} listens there" in done.stderr
    assert stolen == ""


IMPATIENT = """
from probe_agent.server.access import guard
from probe_agent.server import connections
connections.REQUEST_S = connections.TAKE_S = 1.0
connections.MAX_CONNECTIONS = 8
guard.MAX_IN_FLIGHT = 2
"""


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A host server with timeouts of a second and two slots."""
    with serving(tmp_path_factory.mktemp("impatient"), "--listen", "TCP", first=IMPATIENT) as server:
        yield server


def connect(server: Served, head: str = "") -> socket.socket:
    """Open a connection and send `head` on it."""
    connection = socket.create_connection(server.tcp.split(":"), timeout=30)
    connection.sendall(head.encode())
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server closes the connection; return whether it did."""
    try:
        while connection.recv(1 << 20):
            pass
    except ConnectionResetError:
        return True
    return True


def unfinished(server: Served, role: str = "read") -> str:
    """Send a request whose body does not come."""
    token = server.token(role)["Authorization"]
    return f"POST /v1/query HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\nContent-Length: 100\r\n\r\n{{"


@pytest.mark.parametrize("sent", ["nothing", "half a head", "half a body", "a byte now and then", "after an answer"])
def test_a_client_that_keeps_the_server_waiting_is_disconnected(impatient: Served, sent: str) -> None:
    token = impatient.token("read")["Authorization"]
    whole = f"GET /v1/health HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\n\r\n"
    heads = {"half a head": whole[:-2], "half a body": unfinished(impatient), "after an answer": whole + whole[:-2]}

    with connect(impatient, heads.get(sent, "")) as connection:
        if sent == "a byte now and then":
            deadline = time.monotonic() + 30
            with suppress(ConnectionError):
                for byte in whole[:-2] * 100:
                    assert time.monotonic() < deadline
                    connection.sendall(byte.encode())
                    time.sleep(0.1)
        assert is_closed(connection)

    assert impatient.ask("GET", "/v1/health", "read").status_code == 200


def test_a_connection_that_rests_is_not_closed_just_as_a_client_asks_again(server: Served) -> None:
    token = server.token("read")["Authorization"]
    with connect(server) as connection:
        for rest_s in (5.5, 0.0):  # httpx uses a connection again for 5 s
            connection.sendall(f"GET /v1/health HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\n\r\n".encode())
            answer = b""
            while not answer.endswith(b"}"):
                answer += (part := connection.recv(1 << 16))
                assert part
            assert answer.startswith(b"HTTP/1.1 200")
            time.sleep(rest_s)


def test_a_client_that_does_not_read_the_answer_is_disconnected(impatient: Served, target: int) -> None:
    body = json.dumps({"sql": "SELECT repeat('x', 1000) FROM range(20000)"})
    head = unfinished(impatient).replace(": 100", f": {len(body)}").replace("query", f"query?pid={target}")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", int(impatient.tcp.split(":")[1])))
        connection.sendall(head.removesuffix("{").encode() + body.encode())

        connection.recv(1, socket.MSG_PEEK)  # the answer has begun
        until(lambda: is_given_up(connection))
        taken = 0
        with suppress(ConnectionError):
            while data := connection.recv(1 << 20):
                taken += len(data)

    assert taken < 20_000_000


def is_given_up(connection: socket.socket) -> bool:
    """Return whether the server has closed its side, unseen by a client that does not read."""
    established = "01"
    ends = [f"0100007F:{port:04X}" for port in (connection.getpeername()[1], connection.getsockname()[1])]
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return [*ends, established] not in [line[1:4] for line in lines]


def test_too_many_requests_at_once_get_503_but_not_the_owner(impatient: Served) -> None:
    with connect(impatient, unfinished(impatient)), connect(impatient, unfinished(impatient)):
        refused = impatient.ask("GET", "/v1/health", "control")
        owner = probe("-t", f"unix:{impatient.unix}", "list")
    until(lambda: impatient.ask("GET", "/v1/health", "read").status_code == 200)

    assert refused.status_code == 503
    assert refused.headers["Retry-After"] == "1"
    assert refused.json()["error"]["kind"] == "NoAnswer"
    assert owner.returncode == 0, owner.stderr


def test_questions_without_a_token_take_no_place(impatient: Served) -> None:
    head = unfinished(impatient).replace(impatient.token("read")["Authorization"], "Bearer none")
    with connect(impatient, head), connect(impatient, head), connect(impatient, head):
        assert impatient.ask("GET", "/v1/health", "read").status_code == 200


def test_more_connections_than_places_keep_neither_the_owner_nor_later_ones_out(impatient: Served) -> None:
    idle = [connect(impatient) for _ in range(20)]
    owner = probe("-t", f"unix:{impatient.unix}", "list")
    closed = [is_closed(connection) for connection in idle]
    later = impatient.ask("GET", "/v1/health", "read")
    for connection in idle:
        connection.close()

    assert owner.returncode == 0, owner.stderr
    assert all(closed)
    assert later.status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_long_is_not_read(server: Served, chunked: bool) -> None:
    long = "SELECT '" + "x" * (3 << 20) + "'"
    body = json.dumps({"sql": long}).encode()

    content = (body[at : at + 65536] for at in range(0, len(body), 65536)) if chunked else body
    with suppress(httpx.WriteError):  # the server hangs up in the middle
        answer = server.ask("POST", "/v1/query", "read", content=content)
        assert answer.status_code == 413, answer.text

    assert server.ask("GET", "/v1/health", "read").status_code == 200


def test_secrets_of_command_lines_are_never_shown(server: Served) -> None:
    code = "import sys; api_key='hunter2'; sys.stdin.read()"
    with (
        training(code) as pid,
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as candidate,
    ):
        listed = server.ask("GET", "/v1/targets?candidates=true", "read")
        (written,) = Path("/dev/shm").glob(f"probe-{os.getuid()}/{pid}-*/target.json")
        identity = written.read_text()
        candidate.kill()

    commands = {one["pid"]: one["command"] for kind in ("targets", "candidates") for one in listed.json()[kind]}
    assert commands[pid][2] == commands[candidate.pid][2] == code.replace("'hunter2'", "***")
    assert "hunter2" not in listed.text + identity


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('{token}')",
        "SELECT * FROM read_blob('/proc/self/environ')",
        "SELECT * FROM '{token}'",
        'SELECT * FROM "{token}"',
        'SELECT * FROM python."../../../..{token}"',
        'SELECT * FROM probe."audit/../../{token}"',
        "SELECT * FROM glob('{folder}/*')",
        "COPY (SELECT 1) TO '{token}'",
        "ATTACH '{token}' AS t",
        "SELECT 1; SELECT * FROM read_text('{token}')",
        "WITH t AS (SELECT * FROM read_csv('{token}')) SELECT * FROM t",
        "EXPLAIN ANALYZE SELECT * FROM read_text('{token}')",
        "SELECT getenv('PROBE_TOKEN')",
    ],
)
def test_sql_reads_and_writes_no_file(server: Served, target: int, sql: str) -> None:
    file = server.tokens / "token"
    token = file.read_text()

    sql = sql.format(token=file, folder=server.tokens)
    answer = server.ask("POST", f"/v1/query?pid={target}", "read", json={"sql": sql})

    assert answer.status_code == 422, answer.text
    assert token.strip() not in answer.text
    assert file.read_text() == token


def test_a_table_name_is_not_a_path(server: Served, target: int) -> None:
    for query in ("pid=../../etc", "pid=1%00", "rank=-1", "rank=99999999999999999999999", f"pid={target}&pid=1"):
        answer = server.ask("GET", f"/v1/tables?{query}", "read")

        assert answer.status_code in (400, 504), (query, answer.text)
