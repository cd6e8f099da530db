"""A job whose ranks meet in a file: one host server does not lead to the others, and the message gives the remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from support.commands import Probe, environment
from support.forked import Forked
from support.targets import target
from support.waiting import until

from .conftest import Hosts

NUM_RANKS = 2


@pytest.fixture(scope="module")
def endpoints(hosts: Hosts) -> Iterator[list[str]]:
    """The host servers of a running job of two ranks on two hosts."""
    endpoints = [hosts.serve(str(rank), f"127.0.0.{rank + 2}") for rank in range(NUM_RANKS)]
    command = target("ranks_job.py", hosts.base, *endpoints)
    ranks = [
        Forked(
            command,
            env=environment(RANK=str(rank), WORLD_SIZE="2", RANKS_MEET=f"file://{hosts.base}/meeting"),
        )
        for rank in range(NUM_RANKS)
    ]

    def all_train() -> bool:
        assert [rank.poll() for rank in ranks] == [None, None]
        return len(list(Path(hosts.base).glob("*/probe-*/*/python.steps.ring"))) == NUM_RANKS

    try:
        until(all_train, 90)
        yield endpoints
    finally:
        (hosts.base / "stop").touch()
        assert [rank.wait(60) for rank in ranks] == [0, 0]


@pytest.mark.parametrize(
    "words",
    [("--all", "eval", "dist.get_rank()"), ("--all", "query", "SELECT 0", "--format", "csv"), ("ranks",)],
    ids=["eval", "query", "ranks"],
)
def test_one_host_server_answers_for_its_own_ranks_and_names_the_way_to_the_others(
    words: tuple[str, ...], endpoints: list[str], probe: Probe
) -> None:
    done = probe("-t", endpoints[0], *words)

    assert done.returncode == 3
    assert done.stdout.splitlines()[-1].lstrip().startswith("0")
    assert "rank 1 of 2: no address known" in done.stderr
    assert "the job's store is a FileStore; ranks can be found only through a TCPStore" in done.stderr
    assert "try: name the host server of each host: -t HOST:PORT -t HOST:PORT, or -t @FILE" in done.stderr


def test_with_all_host_servers_named_all_ranks_answer(endpoints: list[str], probe: Probe) -> None:
    named = [word for endpoint in endpoints for word in ("-t", endpoint)]

    listed = probe(*named, "ranks", "--format", "jsonl")
    evaluated = probe(*named, "--all", "eval", "100 + dist.get_rank()")

    assert [json.loads(line)["rank"] for line in listed.stdout.splitlines()] == [0, 1]
    assert [line for line in evaluated.stdout.splitlines() if line.isdigit()] == ["100", "101"]
    assert (listed.returncode, evaluated.returncode) == (0, 0), listed.stderr + evaluated.stderr
    assert "FileStore" not in listed.stderr + evaluated.stderr
