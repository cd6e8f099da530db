"""A planned start records what happens before the first step: imports, and who waits for whom in init_process_group."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.commands import ROOT, probe
from support.ports import free_port
from support.waiting import until

from .conftest import FOLDER, started

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
PROGRAM = str(ROOT / "tests" / "targets" / "late_ranks.py")
Told = dict[str, Any]


class Job:
    """Three ranks: rank 1 begins at once, rank 0 and then rank 2 when told to; and what rank 1 told meanwhile."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.port = free_port()
        shared = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
        (folder / "1").touch()
        self.ranks = [
            stack.enter_context(
                started(sys.executable, PROGRAM, str(folder), RANK=str(rank), LOCAL_RANK=str(rank), **shared)
            )
            for rank in range(3)
        ]
        self.alone = self.wait_for(lambda told: told["problem"] and len(told["late"]) == 2)
        (folder / "0").touch()
        self.without_one = self.wait_for(lambda told: told["num_come"] == 2)
        pid = str(self.ranks[1].pid)
        # The reason follows within a second.
        self.reason = until(lambda: self.steps_of(pid) if "without rank 2" in self.steps_of(pid) else "", 60)
        self.listed = until(lambda: found if f"pid {pid}: " in (found := probe("list").stderr) else "", 60)
        self.rows = json.loads(probe(pid, "query", "--format", "json", "SELECT * FROM python.startup").stdout)
        (folder / "2").touch()
        self.outputs = [rank.communicate("", timeout=120) for rank in self.ranks]

    def wait_for(self, holds: Any) -> Told:
        """Return what rank 1 says once that holds."""

        def told() -> Told | None:
            for file in FOLDER.glob(f"{self.ranks[1].pid}-*/start.json"):
                found: Told = json.loads(file.read_text())
                return found if found["state"] == "init_process_group" and holds(found) else None
            return None

        return until(told, 120, says=self.seen, process=self.ranks[1]) or {}

    def seen(self) -> str:
        """What rank 1 has said last, and which ranks have ended."""
        files = FOLDER.glob(f"{self.ranks[1].pid}-*/start.json")
        return f"{[file.read_text() for file in files]}, exit codes {[rank.poll() for rank in self.ranks]}"

    def steps_of(self, pid: str) -> str:
        return probe(pid, "query", "SELECT step FROM python.steps").stderr


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    pytest.importorskip("torch")
    with ExitStack() as stack:
        yield Job(tmp_path_factory.mktemp("ranks"), stack)


def test_a_rank_without_the_others_says_who_is_late_and_that_the_store_is_absent(job: Job) -> None:
    assert (job.alone["rank"], job.alone["world_size"], job.alone["place"]) == (1, 3, f"127.0.0.1:{job.port}")
    assert job.alone["come"] == [1]
    assert "Connection refused" in job.alone["problem"]
    for rank in (0, 2):
        assert job.alone["late"][str(rank)].startswith(f"pid {job.ranks[rank].pid} ")


def test_the_store_tells_how_many_have_come(job: Job) -> None:
    assert (job.without_one["come"], job.without_one["problem"]) == ([0, 1], "")
    assert list(job.without_one["late"]) == ["2"]
    assert "is at hold (late_ranks.py:" in job.without_one["late"]["2"]


def test_a_query_and_list_name_the_rank_that_is_missing(job: Job) -> None:
    expected = f"in init_process_group for 127.0.0.1:{job.port}; 2 of 3 ranks are there, without rank 2; rank 2: pid "

    assert "no step yet: for " in job.reason
    assert "s rank 1 has been waiting " + expected in job.reason
    (line,) = [line for line in job.listed.splitlines() if line.startswith(f"pid {job.ranks[1].pid}: ")]
    assert expected in line


def test_startup_has_the_imports_and_the_wait(job: Job) -> None:
    imports = {row["name"]: row["duration"] for row in job.rows if row["phase"] == "import"}
    (wait,) = [row for row in job.rows if row["phase"] == "init_process_group"]

    assert imports["torch"] > 0
    assert {row["imported_by"] for row in job.rows if row["phase"] == "import"} <= {None, "torch", "numpy"}
    assert (wait["name"], wait["is_now"], wait["come"]) == (f"127.0.0.1:{job.port}", True, "0, 1")
    assert wait["late"].startswith("rank 2: pid ")


def alone() -> str:
    """Return what a rank prints, computed here."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).square().sum().backward()
            optimizer.step()
        total = model.weight.detach().sum()
        return f"{(total + total + total).item().hex()} {torch.rand(()).item()}\n"


@pytest.mark.situation("ranks that wait in init_process_group, watched", "they meet, and compute what they would alone")
def test_the_ranks_meet_and_compute_what_they_would_alone(job: Job) -> None:
    assert job.outputs == [(alone(), "")] * 3
    assert [rank.returncode for rank in job.ranks] == [0, 0, 0]
