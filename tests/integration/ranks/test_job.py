"""A job of two ranks on two hosts: one host server leads to both, through the job's own store."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.targets import target, torchrun

pytest.importorskip("torch")

from support.commands import Probe, environment
from support.waiting import until

from .conftest import Hosts

NUM_RANKS = 2


@dataclass
class Job:
    """Its launcher, its folder, and the endpoints of its host servers by rank."""

    process: subprocess.Popen[bytes]
    folder: Path
    endpoints: list[str]


@pytest.fixture(scope="module")
def job(hosts: Hosts) -> Iterator[Job]:
    """Running, with both ranks known to both hosts; in the end it must have learnt the same as without us."""
    endpoints = [hosts.serve(str(rank), f"127.0.0.{rank + 2}") for rank in range(NUM_RANKS)]
    command = torchrun(NUM_RANKS, target("ranks_job.py", hosts.base, *endpoints))
    output = hosts.base / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment(OMP_NUM_THREADS="1"))
    try:

        def both_known() -> bool:
            assert process.poll() is None, output.read_text()
            targets = [file.parent for file in hosts.base.glob("*/probe-*/*/peers.json")]
            return len(targets) == NUM_RANKS and all(
                (target / "python.steps.ring").exists()
                and len(json.loads((target / "peers.json").read_text())["peers"]) == NUM_RANKS
                and all(json.loads((target / "target.json").read_text()).get(fact) for fact in ("job", "roles"))
                for target in targets
            )

        until(both_known, 90)
        yield Job(process, hosts.base, endpoints)
    finally:
        (hosts.base / "stop").touch()
        process.wait(60)
    assert process.returncode == 0, output.read_text()
    assert output.read_text() == ""
    for rank in range(NUM_RANKS):
        steps, learnt, alone = json.loads((hosts.base / f"done-{rank}.json").read_text())
        assert steps > 0
        assert learnt == pytest.approx(alone, rel=1e-4)


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_one_host_server_lists_all_ranks(job: Job, probe: Probe) -> None:
    done = probe("-t", job.endpoints[0], "ranks", "--format", "jsonl")

    rows = records(done.stdout)
    assert done.returncode == 0, done.stderr
    assert [row["rank"] for row in rows] == [0, 1]
    assert re.fullmatch("[a-z]{6}", rows[0]["job"])
    assert rows[0]["job"] == rows[1]["job"]  # heard from two hosts
    assert rows[0]["endpoint"] == f"{job.endpoints[0]}/0"
    # It names the job too, if the first server knew its name when it told of the other.
    assert rows[1]["endpoint"] in (f"{job.endpoints[1]}/1", f"{job.endpoints[1]}/{rows[1]['job']}/1")
    assert all(row["step"] > 0 and 0 < row["step_time"] < 60 and row["last_seen"] < 60 for row in rows)


def test_the_table_is_for_people(job: Job, probe: Probe) -> None:
    done = probe(job.endpoints[1], "ranks")

    head, _, *lines = done.stdout.splitlines()
    assert head.split() == ["rank", "host", "pid", "job", "dp", "step", "step_time", "state", "last_seen", "endpoint"]
    assert [line.split()[0] for line in lines] == ["0", "1"]


def test_code_runs_on_all_ranks_from_either_end(job: Job, probe: Probe) -> None:
    for endpoint in job.endpoints:
        done = probe("-t", endpoint, "--all", "eval", "100 + dist.get_rank()")

        assert done.returncode == 0, done.stderr
        assert [line for line in done.stdout.splitlines() if line.isdigit()] == ["100", "101"]


def test_a_rank_is_reached_through_another_ranks_server(job: Job, probe: Probe) -> None:
    done = probe("-t", job.endpoints[0], "--rank", "1", "eval", "dist.get_rank()")

    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1"), done.stderr


def test_a_query_reaches_all_hosts(job: Job, probe: Probe) -> None:
    sql = "SELECT DISTINCT rank FROM python.steps"
    done = probe("-t", job.endpoints[0], "--all", "query", sql, "--format", "jsonl")

    assert done.returncode == 0, done.stderr
    assert sorted(row["rank"] for row in records(done.stdout)) == [0, 1]


def test_an_unknown_rank_exits_with_3_and_the_others_answer(job: Job, probe: Probe) -> None:
    done = probe("-t", job.endpoints[0], "--rank", "1,5-6", "eval", "dist.get_rank()")

    assert done.returncode == 3
    assert done.stdout.splitlines()[-1] == "1"
    assert "no target has ranks 5-6" in done.stderr


def test_peers_are_told_with_what_is_known_of_their_addresses(job: Job) -> None:
    told = httpx.get(f"http://{job.endpoints[0]}/v1/peers", trust_env=False, timeout=30).json()

    assert [(peer["rank"], peer["address"]) for peer in told["peers"]] == [*enumerate(job.endpoints)]
    assert all("loopback" in peer["note"] for peer in told["peers"])
    assert told["notes"] == []


def test_without_all_a_server_stands_for_its_own_targets_only(job: Job, probe: Probe) -> None:
    done = probe(job.endpoints[1], "eval", "dist.get_rank()")

    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_a_detached_rank_is_reported_and_the_job_goes_on(job: Job, probe: Probe) -> None:
    folder = next((job.folder / "1").glob("probe-*/*"))
    detached = probe(f"{job.endpoints[1]}/1", "detach")
    listed = probe(job.endpoints[0], "ranks", "--format", "jsonl")
    whole = probe("--require-all", "-t", job.endpoints[0], "--all", "eval", "1")

    assert detached.returncode == 0, detached.stderr
    assert not folder.exists()
    assert [row["rank"] for row in records(listed.stdout)] == [0]
    assert listed.returncode == 3
    assert job.endpoints[1] in listed.stderr
    assert (whole.returncode, whole.stdout) == (3, "")
    assert job.process.poll() is None
