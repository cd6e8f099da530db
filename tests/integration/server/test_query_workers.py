"""Statements run in workers: whatever one does, the host, its server and its other clients are the same afterwards."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from support.commands import plain, probe
from support.open_files import open_files
from support.waiting import until

from probe_agent.server.location import find
from probe_agent.sql.query_engine import QueryEngine
from probe_agent.sql.workers.pool import REST_S
from probe_agent.sql.workers.zygote import TURN_S

from .served import PROBE, Served, serving, training
from .test_sandbox import SLOW, busy_below, cpu_seconds

#: It is refused after 0.3 s or so: it needs more memory than a query may have.
HEAVY = "SELECT count(*) FROM range(1000000000) a, range(1000000000) b WHERE hash(a.range, b.range) = 1"
ENDLESS = "SELECT count(*) FROM range(1000000000000) WHERE hash(range) = 1"
#: Each of them took gigabytes, or minutes after its limit, in the server itself.
WORST = (
    "SELECT len(range(20000000))",
    "SELECT len(range(150000000))",
    "SELECT len(list_resize([1], 1000000000, 0))",
    "SELECT lpad('x', 1000000000, 'y')",
    "SELECT repeat('x', 1000000000)",
    "SELECT repeat('x', 1000) FROM range(1000000000)",
    " UNION ALL ".join(["SELECT 1"] * 20_000),
    "SELECT " + "(" * 20_000,
    "WITH a AS (" * 12 + "SELECT 1",
    "SELECT " + "[" * 5000 + "1" + "]" * 5000,
    "SELECT string_agg(a.range::VARCHAR, ',') FROM range(100000) a, range(100000) b",
    "SELECT a.range FROM range(100000) a, range(100000) b ORDER BY hash(a.range, b.range)",
    "SELECT count(*) FROM range(10000000) a JOIN range(10000000) b ON a.range < b.range",
    "SELECT regexp_replace(repeat('ab', 10000000), '((a*)*b*)*c', 'x', 'g')",
    HEAVY,
)
LIMIT_S = 0.75
#: What the answers' errors promise: the memory of the query, and some slack (probe_agent/sql/workers/limits.py).
WORKER_MIB, SERVER_MIB = 512 + 512 + 200, 250


@pytest.fixture(scope="module")
def pid() -> Iterator[int]:
    with training() as pid:
        yield pid


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, "--listen", "TCP") as server:
        yield server


def workers_of(server: Served) -> list[int]:
    """Return the process that forks workers, and the workers."""
    return below(server.process.pid)


def below(pid: int) -> list[int]:
    """Return every process that `pid` has started, or that one of these has."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, task.read_text().split())
    return found[1:]


def cpu_of_workers(server: Served) -> float:
    return sum(cpu_seconds(each) or 0.0 for each in workers_of(server))


def resident_mib(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20
    except (OSError, IndexError):
        return 0.0


def ask(server: Served, pid: int, sql: str, role: str = "read", **limits: object) -> httpx.Response:
    return server.ask("POST", f"/v1/query?pid={pid}", role, json={"sql": sql, **limits})


def owner(server: Served) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=server.unix)
    return httpx.Client(base_url="http://localhost", transport=transport, trust_env=False, timeout=60)


def test_the_worst_statements_take_no_more_than_they_may(server: Served, pid: int) -> None:
    most: dict[int, float] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            for each in (server.process.pid, *workers_of(server)):
                most[each] = max(most.get(each, 0), resident_mib(each))

    ask(server, pid, "SELECT 7")
    watching = threading.Thread(target=watch)
    watching.start()
    took = {}
    try:
        for sql in WORST:
            began = time.monotonic()
            answer = ask(server, pid, sql, timeout_s=LIMIT_S)
            took[sql[:60]] = time.monotonic() - began
            assert answer.status_code in (200, 422), answer.text
    finally:
        over.set()
        watching.join()

    assert max(took.values()) < LIMIT_S + 5, took  # without a limit some take minutes
    assert most.pop(server.process.pid) < SERVER_MIB
    assert max(most.values()) < WORKER_MIB
    assert ask(server, pid, "SELECT 7", timeout_s=10).json()["rows"] == [[7]]


@pytest.mark.busy_machine("the owner has to be answered within 1 s beside a hundred heavy queries")
def test_the_owner_is_answered_while_readers_send_a_hundred_heavy_queries(server: Served, pid: int) -> None:
    body = json.dumps({"sql": HEAVY})
    head = (
        f"POST /v1/query?pid={pid} HTTP/1.1\r\nHost: x\r\nAuthorization: {server.token('read')['Authorization']}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    took = []
    with ExitStack() as busy, owner(server) as mine:
        for _ in range(100):
            reader = busy.enter_context(socket.create_connection(server.tcp.split(":"), timeout=30))
            reader.sendall((head + body).encode())
        for _ in range(20):
            began = time.monotonic()
            answer = mine.post(f"/v1/query?pid={pid}", json={"sql": "SELECT count(*) FROM python.steps"})
            took.append(time.monotonic() - began)
            assert answer.status_code == 200, answer.text

    assert sorted(took)[10] < 1.0, took


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_server_ends_in_time_and_its_workers_with_it(server: Served, pid: int, how: int) -> None:
    ask(server, pid, "SELECT 7")
    asking = [threading.Thread(target=_ask_in_vain, args=(server, pid)) for _ in range(3)]
    for each in asking:
        each.start()
    until(lambda: any(_is_running(each) for each in workers_of(server)))
    workers = workers_of(server)

    began = time.monotonic()
    server.process.send_signal(how)
    server.process.wait(60)
    took = time.monotonic() - began

    assert took < 20.0  # 2 s where the machine has nothing else to do; the questions would take for ever
    until(lambda: not any(os.path.exists(f"/proc/{each}/exe") and _state(each) not in "ZX" for each in workers))
    for each in asking:
        each.join()


def test_a_profile_that_is_under_way_ends_with_the_server(server: Served, pid: int) -> None:
    wanted = {"seconds": 60, "format": "folded"}
    with ThreadPoolExecutor() as asking, suppress(httpx.HTTPError):
        asked = asking.submit(server.ask, "POST", f"/v1/profile/cpu?pid={pid}", "control", json=wanted)
        until(lambda: any("py-spy" in _name(each) for each in workers_of(server)))
        started = workers_of(server)

        server.process.terminate()
        server.process.wait(30)  # the profile takes 60 s

        until(lambda: all(_state(each) in "ZX" for each in started), 20)
        asked.result()


def test_a_client_with_a_running_request_is_told_that_the_server_has_ended(server: Served, pid: int) -> None:
    command = [PROBE, "-t", f"unix:{server.unix}//pid={pid}", "eval", "print(1, flush=True)\nwhile True: pass"]
    with subprocess.Popen(command, env=plain(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        assert asking.stdout.readline() == "1\n"

        server.process.terminate()
        _, said = asking.communicate(timeout=60)

    assert asking.returncode == 4
    assert f"unix:{server.unix}//pid={pid}: the host server ended, or hung up, before its answer was whole" in said


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def _ask_in_vain(server: Served, pid: int) -> None:
    with suppress(httpx.HTTPError):
        ask(server, pid, ENDLESS)


def _keep(mine: httpx.Client, pid: int, answers: list[httpx.Response]) -> None:
    answers.append(mine.post(f"/v1/query?pid={pid}", json={"sql": ENDLESS}))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _is_running(pid: int) -> bool:
    return _state(pid) == "R"


def test_a_worker_that_dies_while_it_waits_costs_nobody_an_answer(server: Served, pid: int) -> None:
    with owner(server) as mine:
        mine.post(f"/v1/query?pid={pid}", json={"sql": "SELECT 7"})
        zygote, *waiting = workers_of(server)
        assert waiting
        for each in waiting:
            os.kill(each, signal.SIGKILL)
        until(lambda: all(_state(each) == "X" for each in waiting))
        time.sleep(0.3)  # until the process that forks them has told the server

        answer = mine.post(f"/v1/query?pid={pid}", json={"sql": "SELECT 7"})

        assert answer.json().get("rows") == [[7]], answer.text
        assert workers_of(server)[0] == zygote


def test_a_worker_that_crashes_or_is_killed_is_named_and_replaced(server: Served, pid: int) -> None:
    with owner(server) as mine:
        mine.post(f"/v1/query?pid={pid}", json={"sql": "SELECT 7"})
        before = set(workers_of(server))
        for how, seen in ((signal.SIGSEGV, "crashed the process that ran it (SIGSEGV)"), (signal.SIGKILL, "SIGKILL")):
            answers: list[httpx.Response] = []
            asking = threading.Thread(target=_keep, args=(mine, pid, answers))
            asking.start()
            # It takes less to start one, or to answer the short one. The first process is what forks them.
            (worker,) = until(lambda: [each for each in workers_of(server)[1:] if (cpu_seconds(each) or 0) > 0.3])
            os.kill(worker, how)
            asking.join()

            error = answers[0].json()["error"]
            assert seen in error["message"]
            assert error["hint"]
            assert mine.post(f"/v1/query?pid={pid}", json={"sql": "SELECT 7"}).json()["rows"] == [[7]]
        for each in before:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)  # what forks them as well
        until(lambda: all(_state(each) in "ZX" for each in before))
        answer = mine.post(f"/v1/query?pid={pid}", json={"sql": "SELECT 7"})
        again = mine.post(f"/v1/query?pid={pid}", json={"sql": "SELECT 7"})

    assert again.json()["rows"] == [[7]], (answer.text, again.text)


def test_a_long_answer_that_is_not_taken_waits_in_its_worker(server: Served, pid: int) -> None:
    sql = json.dumps({"sql": "SELECT repeat('x', 1000000) FROM range(100)"})
    with ExitStack() as open_:
        for _ in range(3):
            one = open_.enter_context(socket.socket(socket.AF_UNIX))
            one.connect(server.unix)
            length = f"Content-Type: application/json\r\nContent-Length: {len(sql)}\r\n\r\n"
            one.sendall(f"POST /v1/query?pid={pid} HTTP/1.1\r\nHost: localhost\r\n{length}{sql}".encode())
            assert one.recv(12) == b"HTTP/1.1 200"
        assert resident_mib(server.process.pid) < SERVER_MIB
        with owner(server) as mine:
            whole = mine.post(f"/v1/query?pid={pid}", json={"sql": "SELECT repeat('x', 1000000) FROM range(20)"})

    assert [len(row[0]) for row in whole.json()["rows"]] == [1_000_000] * 20


def test_workers_as_the_kernel_sees_them(server: Served, pid: int) -> None:
    ask(server, pid, "SELECT 7")
    with owner(server) as mine:
        mine.post(f"/v1/query?pid={pid}", json={"sql": "SELECT 7"})
    until(lambda: len(workers_of(server)) >= 3)  # what forks them, one of the owner, one of readers
    found = workers_of(server)

    for each in found:
        assert Path(f"/proc/{each}/oom_score_adj").read_text().strip() == "1000"
        assert sum(name.startswith("socket:") for name in open_files(each)) < 8
    listening = subprocess.run(["cat", f"/proc/{found[-1]}/net/unix"], capture_output=True, text=True).stdout
    inode = next(line.split()[6] for line in listening.splitlines() if line.endswith(server.unix))
    for each in found:
        assert f"socket:[{inode}]" not in open_files(each)


def test_long_statements_of_readers_take_little_of_the_processors(server: Served, pid: int) -> None:
    share = REST_S and TURN_S / (TURN_S + REST_S)
    if not share:
        pytest.skip("on so many processors they are not limited")
    with ThreadPoolExecutor() as reader:
        answer = reader.submit(ask, server, pid, SLOW, timeout_s=5)
        time.sleep(1.5)  # from 1 s on it is a long one
        began, spent = time.monotonic(), cpu_of_workers(server)
        time.sleep(2.5)
        used = (cpu_of_workers(server) - spent) / (time.monotonic() - began)

    assert used < 2 * share, answer.result().text  # on a busy host next to nothing
    assert "such queries share a sixteenth of the host's CPUs" in answer.result().json()["error"]["message"]
    assert ask(server, pid, "SELECT 7").json()["rows"] == [[7]]


def test_a_statement_that_is_no_text_is_refused(server: Served, pid: int) -> None:
    headers = {**server.token("read"), "Content-Type": "application/json"}
    answer = server.ask("POST", "/v1/query", content=b'{"sql": "select \'\\ud800\'"}', headers=headers)

    assert answer.status_code == 400
    assert "U+D800" in answer.json()["error"]["message"]
    headers = {**server.token("control"), "Content-Type": "application/json"}
    for method, path, body in (
        ("PATCH", "/v1/config", {"changes": {"\ud800": "1"}}),
        ("POST", "/v1/eval", {"code": "'\ud800'"}),
        ("POST", "/v1/complete", {"text": "\ud800"}),
        ("POST", "/v1/watch", {"expressions": ["\ud800"]}),
    ):
        other = server.ask(method, f"{path}?pid={pid}", content=json.dumps(body).encode(), headers=headers)
        assert other.status_code != 500, (path, other.text)


def test_dropping_an_engine_ends_its_processes() -> None:
    """Without a call of close, as apps whose lifespan is not run."""
    before = below(os.getpid())
    engine = QueryEngine()
    engine.start()
    started = set(below(os.getpid())) - set(before)
    gc.collect()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del engine
        gc.collect()

    assert started
    assert [str(each.message) for each in warned] == []
    until(lambda: not any(os.path.exists(f"/proc/{each}") for each in started))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_query_ends_with_the_command_that_asked_it(pid: int, how: int) -> None:
    (folder,) = Path("/dev/shm").glob(f"probe-{os.getuid()}/{pid}-*")
    assert probe("list").returncode == 0  # a host server runs now
    running = find()
    assert running is not None
    with subprocess.Popen([PROBE, "-t", str(folder), "query", SLOW], env=plain(), stderr=subprocess.PIPE) as asking:
        worker = until(lambda: busy_below(running.pid), process=asking)

        asking.send_signal(how)
        asking.wait(60)

        until(lambda: cpu_seconds(worker) is None)


def test_the_command_line_without_a_server_leaves_no_process(pid: int) -> None:
    done = probe(str(pid), "query", "SELECT count(*) AS n FROM python.steps", "--format", "csv")

    assert done.stdout.split() == ["n", "0"], done.stderr
    assert "Traceback" not in done.stderr
