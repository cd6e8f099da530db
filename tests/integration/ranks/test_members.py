"""The targets behind the endpoints, and commands to each of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from probe_agent.errors import BadRequest, NoAnswer
from probe_agent.wire import QueryRequest, QueryResult
from probe_cli.client import Client
from probe_cli.endpoint import parse_endpoint
from probe_cli.session import Session

from .conftest import Hosts

SQL = "SELECT rank, count(*) FROM test.numbers GROUP BY rank"


def session(*endpoints: str) -> Session:
    return Session(named=tuple(map(parse_endpoint, endpoints)), inject=False)


async def pid_of(client: Client) -> int:
    """Return the PID of the single process that answers: a query over several would have several rows."""
    answer = await client.send(QueryResult, "POST", "/v1/query", QueryRequest("SELECT DISTINCT pid FROM python.stacks"))
    (row,) = answer.rows
    return int(str(row[0]))


@pytest.fixture(scope="module")
def pair(hosts: Hosts) -> tuple[str, int, int]:
    """A host server with two targets: its endpoint, and their PIDs by rank."""
    endpoint = hosts.serve("pair")
    return endpoint, hosts.target("pair", 0, 2).pid, hosts.target("pair", 1, 2).pid


def test_a_host_server_stands_for_its_living_targets_by_rank(pair: tuple[str, int, int]) -> None:
    endpoint, first, second = pair

    found = session(endpoint).list_ranks()

    assert [(str(name), member.info.rank, member.info.pid) for name, member in found.answered] == [
        (f"{endpoint}/0", 0, first),
        (f"{endpoint}/1", 1, second),
    ]
    assert {str(member.server) for _, member in found.answered} == {endpoint}
    assert found.exit_code == 0


def test_a_rank_or_a_pid_is_one_member(pair: tuple[str, int, int]) -> None:
    endpoint, _, second = pair

    by_rank = session(f"{endpoint}/1").list_ranks()
    by_pid = session(f"{endpoint}/pid={second}").list_ranks()

    assert [member.info.pid for _, member in by_rank.answered] == [second]
    assert [str(name) for name, _ in by_rank.answered] == [str(name) for name, _ in by_pid.answered]


def test_a_question_is_put_to_each_member_alone(pair: tuple[str, int, int]) -> None:
    endpoint, *pids = pair

    answers = session(endpoint).ask_ranks(pid_of, timeout_s=30)

    assert [(str(name), pid) for name, pid in answers.answered] == [
        (f"{endpoint}/{rank}", pid) for rank, pid in enumerate(pids)
    ]


def test_two_single_processes_are_distinguished_by_their_jobs(hosts: Hosts) -> None:
    endpoint = hosts.serve("twins")
    pids = {hosts.target("twins", 0, 1).pid for _ in range(2)}
    said = [json.loads(file.read_text()) for file in Path(hosts.base, "twins").glob("probe-*/*/target.json")]
    places = {f"{endpoint}/{one['job']}/0": one["pid"] for one in said}

    answers = session(*(f"{endpoint}/{one['job']}" for one in said)).ask_ranks(pid_of, timeout_s=30)

    assert {str(name): pid for name, pid in answers.answered} == places
    assert set(places.values()) == pids
    with pytest.raises(BadRequest, match="2 jobs"):
        session(endpoint).list_ranks()


def test_two_ways_to_the_same_target_are_one_member(pair: tuple[str, int, int], hosts: Hosts) -> None:
    endpoint, *pids = pair
    other = hosts.serve("pair", "127.0.0.2")

    found = session(endpoint, f"{other}/1", other).list_ranks()

    assert [member.info.pid for _, member in found.answered] == pids


def test_unanswered_ranks_are_named_and_the_others_are_asked(
    pair: tuple[str, int, int], nobody: str, capfd: pytest.CaptureFixture[str]
) -> None:
    endpoint, *pids = pair

    answers = session(endpoint, nobody).ask_ranks(pid_of, timeout_s=30)

    assert [pid for _, pid in answers.answered] == pids
    assert [str(name) for name, _ in answers.unanswered] == [nobody]
    assert answers.exit_code == 3
    assert f"probe: {nobody} refused the connection" in capfd.readouterr().err


def test_the_dead_are_no_members_unless_they_are_named(hosts: Hosts) -> None:
    endpoint = hosts.serve("dead")
    living = hosts.target("dead", 0, 2)
    dead = hosts.target("dead", 1, 2)
    dead.kill()
    dead.wait(60)

    assert [member.info.pid for _, member in session(endpoint).list_ranks().answered] == [living.pid]
    assert [member.info.pid for _, member in session(f"{endpoint}/1").list_ranks().answered] == [dead.pid]


def test_a_server_without_targets_is_no_answer(hosts: Hosts) -> None:
    endpoint = hosts.serve("empty")

    with pytest.raises(NoAnswer, match="no such target"):
        session(endpoint).list_ranks()


def test_a_folder_that_a_target_left_is_one_member(hosts: Hosts, pair: tuple[str, int, int]) -> None:
    (folder,) = Path(hosts.base, "pair", f"probe-{os.getuid()}").glob(f"{pair[1]}-*")

    found = session(str(folder)).list_ranks()

    assert [member.info.pid for _, member in found.answered] == [pair[1]]
