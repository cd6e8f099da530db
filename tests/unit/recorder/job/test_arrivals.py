"""What a rank that waits in init_process_group learns from a real TCPStore, and that asking changes nothing there."""

from __future__ import annotations

import json
import socket
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port
from support.waiting import until

pytest.importorskip("torch")

from torch.distributed import PrefixStore, TCPStore

from probe_agent.recorder.job.arrivals import Arrivals, StoreWatch, Waiting, neighbours
from probe_agent.recorder.ring.folder import START, hold

TIMEOUT = timedelta(seconds=60)


@pytest.mark.parametrize("uses_libuv", [True, False])
def test_asking_the_store_neither_counts_as_a_rank_nor_disturbs_those_that_wait(uses_libuv: bool) -> None:
    port = free_port()
    watch = StoreWatch(Waiting(1, 2, f"127.0.0.1:{port}", has_agent_store=False))
    stores: list[Any] = []

    def join(is_master: bool) -> None:
        stores.append(TCPStore("127.0.0.1", port, 2, is_master, TIMEOUT, use_libuv=uses_libuv))

    master = threading.Thread(target=join, args=(True,), daemon=True)
    master.start()
    until(lambda: watch.ask().num == 1)
    answers = [watch.ask() for _ in range(100)]
    still_waits = master.is_alive() and not stores
    join(False)
    master.join(30)

    assert answers == [Arrivals(1, frozenset({0}))] * 100
    assert still_waits
    assert len(stores) == 2
    stores[0].set("of the job", "works")
    assert stores[1].get("of the job") == b"works"
    assert watch.ask().num == 2
    PrefixStore("default_pg/0//cpu//0", stores[0]).set("1", "an address")
    assert watch.ask().ranks == {0, 1}
    watch.close()
    assert watch.ask() == Arrivals()


def test_a_store_that_is_absent_and_a_file_are_no_error() -> None:
    absent = StoreWatch(Waiting(1, 2, f"127.0.0.1:{free_port()}", has_agent_store=False)).ask()

    assert "refused" in absent.problem
    assert StoreWatch(Waiting(1, 2, "/tmp/meet", has_agent_store=False)).ask() == Arrivals()


def test_a_store_that_answers_after_the_detach_is_asked_nothing_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        watch = StoreWatch(Waiting(1, 2, f"127.0.0.1:{port}", has_agent_store=False))
        answers: list[Arrivals] = []
        asking = threading.Thread(target=lambda: answers.append(watch.ask()), daemon=True)
        asking.start()
        connection, _ = server.accept()
        with connection:
            connection.settimeout(30)
            hello = connection.recv(100)
            watch.close()
            connection.sendall(hello[-4:])
            more = connection.recv(100)
            asking.join(30)

    assert more == b""
    assert answers == [Arrivals()]


def test_other_targets_of_the_host_are_read_and_one_rank_asks_the_store(tmp_path: Path) -> None:
    def target(pid: int, **told: object) -> str:
        folder = tmp_path / f"{pid}-1"
        folder.mkdir()
        usual = {"pid": pid, "world_size": 4, "place": "node0:29500", "state": "import", "does": "imports torch"}
        (folder / START).write_text(json.dumps({**usual, **told}))
        return str(folder)

    target(100, rank=0, state="init_process_group", come=[0, 7], num_come=3, problem="")
    held = [hold(str(tmp_path / "100-1")), hold(target(101, rank=1)), hold(target(103, rank=3, place="other:1"))]
    target(102, rank=2, state="init_process_group")  # it has ended: its folder is not held
    waiting = Waiting(3, 4, "node0:29500", has_agent_store=True)

    of_third, asks = neighbours(str(tmp_path / "104-1"), waiting)
    _, lowest_asks = neighbours(str(tmp_path / "100-1"), waiting._replace(rank=0))

    assert of_third == Arrivals(3, frozenset({0, 7}), {1: "pid 101 imports torch"})
    assert (asks, lowest_asks) == (False, True)
    assert len(held) == 3
