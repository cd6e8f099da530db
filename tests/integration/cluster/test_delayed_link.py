"""A host behind a slow link costs only its delay: the answer and the clock offsets stay right."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from support import commands
from support.commands import environment

from .conftest import ROOT, Hosts

AGGREGATE = (
    "SELECT host, count(*) AS n, sum(step) AS total, max(x) AS most FROM test.steps"
    " WHERE step >= 0 GROUP BY host ORDER BY host"
)


@contextmanager
def link_to(address: str, there_s: float, back_s: float) -> Iterator[str]:
    """An address that leads to `address` with a delay."""
    command = [sys.executable, "-m", "benchmarks.relay", address, str(there_s), str(back_s)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as relay:
        assert relay.stdout is not None
        yield relay.stdout.readline().strip()
        relay.terminate()


def probe(endpoints: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    named = [word for endpoint in endpoints for word in ("-t", endpoint)]
    return commands.probe(*named, *words, "--format", "json")


def rows(hosts: Hosts, servers: list[int]) -> list[list[object]]:
    return [list(row) for row in hosts.of(servers).execute(AGGREGATE).fetchall()]


@pytest.mark.long
@pytest.mark.busy_machine("only its wall clock tells two rounds of 3 s from three hosts asked one after the other")
def test_a_delay_is_paid_once_a_round_and_not_once_a_host(hosts: Hosts) -> None:
    with ExitStack() as links:
        slow = [links.enter_context(link_to(address, 1.5, 1.5)) for address in hosts.addresses[:3]]
        began = time.monotonic()
        done = probe(slow, "query", AGGREGATE, "--host-timeout", "30", "--timeout", "50")
        took_s = time.monotonic() - began

    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert [list(row.values()) for row in answer["rows"]] == rows(hosts, [0, 1, 2])
    assert (answer["answered"], answer["unanswered"]) == (slow, [])
    # Two rounds, which tables there are and the question, of 3 s each; one host after the other that were 18 s.
    assert 6.0 <= took_s < 16.0


def test_beyond_the_timeout_only_the_delayed_host_is_missing_and_named(hosts: Hosts) -> None:
    with link_to(hosts.addresses[1], 30.0, 30.0) as slow:
        endpoints = [hosts.addresses[0], slow, hosts.addresses[2]]
        done = probe(endpoints, "query", AGGREGATE, "--host-timeout", "4", "--timeout", "50")

    assert done.returncode == 3
    answer = json.loads(done.stdout)
    assert [list(row.values()) for row in answer["rows"]] == rows(hosts, [0, 2])
    assert answer["answered"] == [hosts.addresses[0], hosts.addresses[2]]
    (missing,) = answer["unanswered"]
    assert (missing["endpoint"], missing["message"]) == (slow, f"{slow} did not answer within 4 s")
    assert "--host-timeout" in missing["hint"]
    assert missing["message"] in done.stderr
    assert f"2 of 3 answered; not: {slow}" in done.stderr


def rank_on(hosts: Hosts, server: int) -> int:
    (found,) = hosts.whole.execute(f"SELECT min(rank) FROM main.events WHERE server = {server}").fetchall()
    return int(found[0])


@pytest.mark.long
@pytest.mark.parametrize(("there_s", "back_s"), [pytest.param(0.4, 0.0, id="there"), pytest.param(0.0, 0.4, id="back")])
def test_the_uncertainty_of_a_clock_covers_a_delay_on_one_way_only(hosts: Hosts, there_s: float, back_s: float) -> None:
    first, second = (f"/{rank_on(hosts, server)}" for server in (0, 1))
    with link_to(hosts.addresses[1], there_s, back_s) as slow:
        done = probe([hosts.addresses[0] + first, slow + second], "compare")

    clocks = {clock["host"]: clock for clock in json.loads(done.stdout)["clocks"]}
    near, far = clocks["host0"], clocks["host1"]
    # All clocks are that of this machine, so the right offset is 0.
    assert abs(near["offset"]) <= near["uncertainty"] + 1e-4
    assert abs(far["offset"]) <= far["uncertainty"] + 1e-4
    assert 0.19 < abs(far["offset"]) < 5
    assert (far["offset"] > 0) == (there_s > back_s)
