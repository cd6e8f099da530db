"""Exchanges with a real TCPStore: one that works, one that is stopped or gone, and other kinds of store."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.forked import Forked
from support.waiting import stop

pytest.importorskip("torch")

from probe_agent.recorder.job.peers import FILE, Job, Peers
from probe_agent.recorder.job.rank import name_by_store
from probe_agent.recorder.job.tcp_store import StoreFailed, TcpStore
from probe_agent.recorder.ring.folder import TARGET

STORE = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False, use_libuv=sys.argv[1] == "uv")
store.set("of the job", "untouched")
print(store.port, flush=True)
for line in sys.stdin:
    print(store.get("of the job").decode(), store.check(["probe/ranks"]), flush=True)
"""


def a_store(server: str) -> Forked:
    return Forked(["-c", STORE, server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The process of a store with one of torch's two servers, and its port."""
    with a_store(getattr(request, "param", "uv")) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.kill()


both_servers = pytest.mark.parametrize("store", ["uv", "threads"], indirect=True)


def peers(base: Path, rank: int, at: float = 1.5) -> Peers:
    """The peers of a rank's recorder, in a folder with its target.json."""
    folder = base / f"host{rank}" / f"{rank}-1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TARGET).write_text(json.dumps({"host": f"host{rank}", "attached_at": at, "host_pid": 100 + rank}))
    return Peers(str(folder))


def known(base: Path, rank: int) -> list[tuple[int, str, str | None]]:
    said = json.loads((base / f"host{rank}" / f"{rank}-1" / FILE).read_text())
    return [(peer["rank"], peer["host"], peer["address"]) for peer in said["peers"]]


@both_servers
def test_ranks_hear_of_each_other_and_the_job_keeps_its_keys(
    store: tuple[subprocess.Popen[str], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, port = store
    before = (threading.active_count(), os.listdir("/proc/self/fd"))

    for rank in (0, 2, 0):
        monkeypatch.setenv("PROBE_LISTEN", f"10.0.0.{rank}:8080")
        peers(tmp_path, rank).exchange(Job("127.0.0.1", port, rank, 3))

    assert known(tmp_path, 2) == [(0, "host0", "10.0.0.0:8080"), (2, "host2", "10.0.0.2:8080")]
    assert known(tmp_path, 0) == known(tmp_path, 2)
    assert (threading.active_count(), os.listdir("/proc/self/fd")) == before
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "untouched True\n"


def test_a_server_that_moved_publishes_again_and_the_later_line_counts(
    store: tuple[subprocess.Popen[str], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job("127.0.0.1", store[1], 0, 2)
    rank = peers(tmp_path, 0)
    monkeypatch.delenv("PROBE_LISTEN", raising=False)
    rank.exchange(job)
    was_news = rank.is_news(job)
    first = known(tmp_path, 0)
    monkeypatch.setenv("PROBE_LISTEN", "10.0.0.1:8080")

    is_news = rank.is_news(job)
    rank.exchange(job)

    assert (was_news, is_news) == (False, True)
    assert first == [(0, "host0", None)]
    assert known(tmp_path, 0) == [(0, "host0", "10.0.0.1:8080")]


def test_lines_that_are_not_ours_are_left_out(store: tuple[subprocess.Popen[str], int], tmp_path: Path) -> None:
    connection = TcpStore("127.0.0.1", store[1], 5.0)
    entry = {"rank": 9, "host": "h", "pid": 1, "attached_at": 1.0, "note": "", "address": None}
    for line in ("no json", "[]", json.dumps(entry), json.dumps({**entry, "rank": 1, "address": 7}), '{"rank": true}'):
        connection.append("probe/ranks", line + "\n")
    connection.close()

    peers(tmp_path, 0).exchange(Job("127.0.0.1", store[1], 0, 2))

    assert [rank for rank, *_ in known(tmp_path, 0)] == [0]


@both_servers
def test_a_store_that_does_not_answer_costs_a_second_and_one_that_has_gone_nothing(
    store: tuple[subprocess.Popen[str], int], tmp_path: Path
) -> None:
    process, port = store
    job, rank = Job("127.0.0.1", port, 0, 2), peers(tmp_path, 0)
    rank.exchange(job)
    stop(process.pid)
    began = time.monotonic()
    with pytest.raises(StoreFailed):
        rank.exchange(job)
    assert time.monotonic() - began < 15  # torch's own client would wait for ever
    process.kill()
    process.wait(30)

    with pytest.raises(StoreFailed, match="cannot connect"):
        rank.exchange(job)

    assert known(tmp_path, 0)[0][0] == 0  # what was known stays known


def test_a_conversation_under_way_ends_when_the_recorder_stops(
    store: tuple[subprocess.Popen[str], int], tmp_path: Path
) -> None:
    process, port = store
    stop(process.pid)
    failures: list[StoreFailed] = []
    rank = peers(tmp_path, 0)

    def exchange() -> None:
        try:
            rank.exchange(Job("127.0.0.1", port, 0, 2))
        except StoreFailed as failure:
            failures.append(failure)

    thread = threading.Thread(target=exchange)
    thread.start()
    rank.stop()
    thread.join(15)
    process.send_signal(signal.SIGCONT)

    assert not thread.is_alive()
    assert failures
    assert not (tmp_path / "host0" / "0-1" / FILE).exists()


def test_something_else_on_that_port_is_not_taken_for_a_store(tmp_path: Path) -> None:
    import http.server

    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as foreign:
        threading.Thread(target=foreign.serve_forever, daemon=True).start()
        with pytest.raises(StoreFailed):
            peers(tmp_path, 0).exchange(Job("127.0.0.1", foreign.server_port, 0, 2))
        foreign.shutdown()


def test_only_a_job_that_meets_in_a_tcp_store_can_be_followed(tmp_path: Path) -> None:
    code = f"""
import torch.distributed as dist
from probe_agent.recorder.job.rank import the_job
print(the_job())
for make in (lambda: dist.FileStore({str(tmp_path / "store")!r}, 1), dist.HashStore,
             lambda: dist.PrefixStore("a", dist.PrefixStore("b", dist.TCPStore("127.0.0.1", 0, 1, True)))):
    dist.init_process_group("gloo", store=make(), rank=0, world_size=1)
    print(the_job())
    dist.destroy_process_group()
print(the_job(), flush=True)
import os; os._exit(0)
"""

    with Forked(["-c", code], stdout=subprocess.PIPE, text=True) as process:
        out, _ = process.communicate(timeout=90)

    before, file_store, hash_store, tcp_store, after = out.splitlines()
    assert before == after == "torch.distributed has no process group in this process"
    assert "store is a FileStore" in file_store
    assert "store is a HashStore" in hash_store
    assert tcp_store.startswith("Job(host='127.0.0.1', port=")


def test_ranks_on_all_hosts_hear_one_name_and_the_next_job_at_the_same_address_another(tmp_path: Path) -> None:
    names = []
    for job in range(2):
        with a_store("uv") as process:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            ranks = [peers(tmp_path / str(job), rank, at=job + 0.5) for rank in (1, 0)]
            for rank in ranks:
                rank.exchange(Job("127.0.0.1", port, ranks.index(rank), 2))
            names.append([name_by_store(rank.oldest_line) for rank in ranks])
            process.kill()

    (first, also_first), (second, also_second) = names
    assert (first, second) == (also_first, also_second)
    assert first != second
    assert all(re.fullmatch("[a-z]{6}", name) for name in (first, second))


def test_before_there_is_a_process_group_a_rank_of_torchruns_knows_the_store_and_what_it_starts_does_not() -> None:
    code = "import subprocess, sys\nfrom probe_agent.recorder.job.rank import the_job\nprint(the_job(), flush=True)\n"
    start_another = "if len(sys.argv) < 2: subprocess.run([sys.executable, '-c', sys.orig_argv[2], 'child'])"
    told = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    told |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none"}

    done = subprocess.run(
        [sys.executable, "-c", code + start_another], capture_output=True, text=True, timeout=60, env=os.environ | told
    )

    assert done.stdout.splitlines() == [
        "Job(host='node1', port=29500, rank=1, world_size=2)",
        "torch.distributed has no process group in this process",
    ]
