"""Ranks that raise, hang on exit, or are killed: every rank is in the answer, and the first to die is named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.open_files import open_files
from support.targets import MEET, target, torchrun

pytest.importorskip("torch")

from support.commands import Probe, environment
from support.waiting import until

from .conftest import NUM_RANKS, TwoRanks


@contextmanager
def job_in(folder: Path, **environ: str) -> Iterator[TwoRanks]:
    command = torchrun(NUM_RANKS, target("spawned_ranks.py", folder), meet=[*MEET, "--monitor-interval=2"])
    (folder / "join").touch()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment(OMP_NUM_THREADS="1", **environ)
        )
    try:
        job = TwoRanks(folder, process)
        until(job.trains, 180)
        yield job
    finally:
        (folder / "stop").touch()
        (folder / "sit").unlink(missing_ok=True)
        process.wait(60)


@pytest.mark.long
@pytest.mark.situation(
    "raised, and waits in an exit handler", "its stack is read from outside, with the reason for its end"
)
def test_a_rank_that_raised_and_sits_in_an_exit_handler_is_in_the_answer(tmp_path: Path, probe: Probe) -> None:
    with job_in(tmp_path) as job:
        recorded = (*job.targets, "query", "--format", "csv", "SELECT count(DISTINCT pid) AS n FROM python.steps")
        until(lambda: probe(*recorded).stdout.split() == ["n", str(NUM_RANKS)])
        (job.folder / "sit").touch()
        (job.folder / "raise-1").touch()
        until(lambda: "has had enough" in probe(*job.targets, "list").stderr)

        tree = probe(str(job.process.pid), "backtrace", "--all-ranks", "--json")  # torchrun leads to its ranks
        alone = probe(str(job.pids[1]), "backtrace")

    answer = json.loads(tree.stdout)
    assert tree.returncode == 0, tree.stderr
    assert (len(answer["answered"]), answer["unanswered"]) == (NUM_RANKS, [])
    assert [branch["ranks"] for branch in answer["tree"]] == [[0, 1]]
    outermost = {tuple(branch["ranks"]): branch["frames"][0]["func"] for branch in answer["tree"][0]["branches"]}
    assert outermost == {(0,): "<module>", (1,): "sit"}
    assert "sit" in alone.stdout
    assert "its interpreter is shutting down" in alone.stderr
    assert "it raised RuntimeError: rank 1 has had enough" in alone.stderr


@pytest.mark.situation("another rank of its job on this host is killed", "time and signal are recorded")
def test_the_rank_that_was_killed_is_named_though_the_others_have_died_of_it(tmp_path: Path, probe: Probe) -> None:
    with job_in(tmp_path, PROBE="1") as job:
        folders = [next(Path(f"/dev/shm/probe-{os.getuid()}").glob(f"{pid}-*")) for pid in job.pids]
        until(lambda: all((folder / "peers.json").exists() for folder in folders))
        until(lambda: _watches(job.pids[0]))
        os.kill(job.pids[1], signal.SIGKILL)
        job.process.wait(60)

        said = {
            "ranks": probe(*job.targets, "ranks").stderr,
            "compare": probe(*job.targets, "compare").stderr,
            "list": probe("list", "--dead").stderr,
            "backtrace": probe(*job.targets, "--all", "backtrace", "--all-ranks").stderr,
        }

    first = f"rank 1 (pid {job.pids[1]} on {os.uname().nodename}) was the first to end: it was killed by SIGKILL at "
    assert [name for name, text in said.items() if first not in text] == [], said


def _watches(pid: int) -> bool:
    return "anon_inode:[pidfd]" in open_files(pid)
