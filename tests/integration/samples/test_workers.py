"""`python.workers` and `python.worker_stacks`: two loader workers that can be counted and found."""

from __future__ import annotations

from pathlib import Path
from subprocess import Popen

import pytest
from support.waiting import until

from tests.integration.server.conftest import Host

pytestmark = pytest.mark.torch


def test_each_worker_is_shown_with_what_it_uses(host: Host, target: Popen[str]) -> None:
    rows = host.rows(
        "SELECT pid, worker_pid, kind, state, age, cpu_user + cpu_system, run_delay, rss, rss_shared"
        " FROM python.workers"
    )

    assert len(rows) == 2
    for pid, worker, kind, state, age, cpu, delay, rss, shared in rows:
        parent = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1]
        assert pid == target.pid == int(parent)
        assert kind == "loader"
        assert state in ("running", "sleeping", "waiting for a disk")
        assert 0 <= cpu <= age  # type: ignore[operator]
        assert 0 < delay < age  # type: ignore[operator]
        assert 0 < shared < rss  # type: ignore[operator]


def test_the_stacks_of_workers_are_read_from_outside(host: Host) -> None:
    workers = {row[0] for row in host.rows("SELECT worker_pid FROM python.workers")}

    answer = host.query("SELECT worker_pid, func FROM python.worker_stacks WHERE func = '_worker_loop'")

    if "py-spy is not installed" in str(answer.get("notes")):
        pytest.skip("py-spy is not installed")
    assert {row[0] for row in answer["rows"]} == workers, answer  # type: ignore[attr-defined]


def test_samples_of_the_process_can_be_queried(host: Host, target: Popen[str]) -> None:
    sql = "SELECT pid, cpu_training / period, num_threads, rss FROM process.samples ORDER BY ts DESC LIMIT 1"

    rows = until(lambda: host.rows(sql))

    pid, share, threads, rss = rows[0]
    assert pid == target.pid
    assert 0 < share < 1.1  # type: ignore[operator]
    assert threads >= 3  # type: ignore[operator]
    assert rss > 50  # type: ignore[operator]
