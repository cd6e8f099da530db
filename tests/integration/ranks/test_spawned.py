"""A script started by accelerate that spawns its ranks by `mp.spawn`: they are known as soon as torch knows them, also
in earlier rows, and both launchers stand for them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")

from support.commands import ROOT, Probe, environment
from support.open_files import open_files
from support.waiting import until

from .conftest import NUM_RANKS, TwoRanks

BY_RANK = "SELECT rank, world_size, pid, job, min(step) < 3 AS from_start FROM python.steps GROUP BY ALL ORDER BY rank"


class Spawned(TwoRanks):
    """The launcher of a script that has spawned them."""

    @property
    def parent(self) -> int:
        """The script that waits in `mp.spawn`."""
        return int(Path(f"/proc/{self.pids[0]}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="module")
def spawned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spawned]:
    """Both ranks train alone until there is a file `join`."""
    folder = tmp_path_factory.mktemp("spawned")
    command = ["accelerate", "launch", "--cpu", str(ROOT / "tests" / "targets" / "spawned_ranks.py"), str(folder)]
    process = subprocess.Popen(command, env=environment(OMP_NUM_THREADS="1"))
    job = Spawned(folder, process)
    try:
        until(job.trains, 180)
        yield job
    finally:
        (folder / "stop").touch()
        (folder / "join").touch()
        assert process.wait(60) == 0


@pytest.fixture
def joined(spawned: Spawned, probe: Probe) -> Spawned:
    """The same once torch has a process group in both; attached to before."""
    probe(*spawned.targets, "query", "SELECT 1")
    (spawned.folder / "join").touch()

    def all_know() -> bool:
        return [row["rank"] for row in rows(probe(*spawned.targets, "query", BY_RANK, "--format", "jsonl"))] == [0, 1]

    until(all_know, 60)
    return spawned


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_before_torch_knows_the_ranks_they_are_null_and_not_0(spawned: Spawned, probe: Probe) -> None:
    sql = "SELECT rank, world_size, job, pid FROM python.backtrace GROUP BY ALL ORDER BY pid"

    done = probe(*spawned.targets, "query", sql, "--format", "jsonl")

    assert done.returncode == 0, done.stderr
    assert rows(done) == [{"rank": None, "world_size": None, "job": None, "pid": pid} for pid in sorted(spawned.pids)]


def test_rows_written_before_the_ranks_were_known_have_them_too(joined: Spawned, probe: Probe) -> None:
    def told() -> list[dict[str, object]]:  # the name of the job is known half a second after the ranks
        found = rows(probe(*joined.targets, "query", BY_RANK, "--format", "jsonl"))
        return found if all(row["job"] for row in found) else []

    found = until(told)

    (job,) = {row["job"] for row in found}
    assert found == [
        {"rank": rank, "world_size": 2, "pid": pid, "job": job, "from_start": True}
        for rank, pid in enumerate(joined.pids)
    ]


def test_one_rank_leads_to_the_others_of_its_host_though_they_meet_in_a_file(joined: Spawned, probe: Probe) -> None:
    done = probe("-t", str(joined.pids[1]), "--all", "ranks", "--format", "jsonl")

    assert done.returncode == 0, done.stderr
    assert [(row["rank"], row["pid"]) for row in rows(done)] == [*enumerate(joined.pids)]


@pytest.mark.parametrize("launcher", [pytest.param("accelerate", marks=pytest.mark.long), "mp.spawn"])
def test_a_launcher_stands_for_the_ranks_it_has_started(launcher: str, joined: Spawned, probe: Probe) -> None:
    pid = joined.parent if launcher == "mp.spawn" else joined.process.pid
    first, second = joined.pids

    done = probe(str(pid), "query", BY_RANK, "--format", "csv")
    asked = probe(str(pid), "eval", "1 + 1")
    both = probe("-t", str(pid), "--all", "eval", "1 + 1")

    assert done.returncode == 0, done.stderr
    by_rank = [line.split(",")[:3] for line in done.stdout.split()[1:]]
    assert by_rank == [["0", "2", str(first)], ["1", "2", str(second)]]
    named = f"pid {pid} is a launcher ({launcher}) and has started pid {first} (rank 0), pid {second} (rank 1)"
    assert f"{named}: they are asked instead" in done.stderr
    assert (asked.returncode, asked.stdout) == (2, "")
    assert f"{named}: 2 targets" in asked.stderr
    assert both.stdout.split().count("2") == NUM_RANKS, both.stderr


def test_a_launcher_can_be_asked_itself(joined: Spawned, probe: Probe) -> None:
    done = probe("--no-inject", "--itself", str(joined.parent), "backtrace")

    assert done.returncode == 0, done.stderr
    assert "torch/multiprocessing/spawn.py" in done.stdout


def test_after_a_detach_no_rank_watches_another(joined: Spawned, probe: Probe) -> None:
    def watching() -> list[bool]:
        return ["anon_inode:[pidfd]" in open_files(pid) for pid in joined.pids]

    until(lambda: watching() == [True, True])
    for pid in joined.pids:
        probe("-t", str(pid), "detach")

    assert watching() == [False, False]
