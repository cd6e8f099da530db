"""All targets of a host have ended: the rows of several jobs are not mixed, and the way to each is printed."""

from __future__ import annotations

import re

import pytest
from support.commands import Probe

from .conftest import Hosts

SQL = "SELECT count(*) AS n FROM test.numbers"


@pytest.fixture(scope="module")
def ended(hosts: Hosts) -> tuple[str, list[int]]:
    """The endpoint of a host with two ended targets, and their PIDs."""
    endpoint = hosts.serve("ended")
    pids = []
    for rank in range(2):
        process = hosts.target("ended", rank, 2)
        process.kill()
        process.wait(60)
        pids.append(process.pid)
    return endpoint, pids


@pytest.mark.parametrize(
    "words", [("--all", "query", SQL), ("query", SQL), ("--all", "eval", "1"), ("ranks",), ("compare",), ("tables",)]
)
def test_a_question_to_all_names_the_ended_and_shows_nothing(
    words: tuple[str, ...], ended: tuple[str, list[int]], probe: Probe
) -> None:
    endpoint, pids = ended

    done = probe("-t", endpoint, *words)

    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert "no living target" in done.stderr
    assert all(f"pid {pid}" in done.stderr for pid in pids)


def test_the_hint_asks_one_for_what_it_left(ended: tuple[str, list[int]], probe: Probe) -> None:
    endpoint, pids = ended
    hint = probe("-t", endpoint, "--all", "query", SQL).stderr

    (named,) = re.findall(r"probe -t (\S+) query", hint)
    done = probe("-t", named, "query", SQL, "--format", "csv")

    assert named == f"{endpoint}/pid={pids[-1]}"
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 0


def test_one_that_has_ended_is_not_all_ranks_of_a_job(hosts: Hosts, probe: Probe) -> None:
    endpoint = hosts.serve("one")
    process = hosts.target("one", 0, 2)
    process.kill()
    process.wait(60)

    whole = probe("-t", endpoint, "--all", "query", SQL)
    alone = probe("-t", endpoint, "query", SQL, "--format", "csv")

    assert (whole.returncode, whole.stdout) == (4, "")
    assert f"pid {process.pid} (rank 0)" in whole.stderr
    assert alone.returncode == 0, alone.stderr
