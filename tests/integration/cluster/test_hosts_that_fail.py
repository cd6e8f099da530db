"""A host that does not answer, lies or has another version loses its own answer; the others' stays right."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support import commands

from .conftest import Hosts

NOBODY = "127.0.0.1:1"  # a port nothing listens on
COUNT = "SELECT host, count(*) AS n FROM test.steps WHERE step >= 0 GROUP BY host ORDER BY host"


@contextmanager
def lying(how: str) -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).with_name("lying_server.py")), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[1]
        server.terminate()


def probe(endpoints: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    named = [word for endpoint in endpoints for word in ("-t", endpoint)]
    return commands.probe(*named, *words)


def rows(hosts: Hosts, servers: list[int], sql: str) -> list[list[object]]:
    return [list(row) for row in hosts.of(servers).execute(sql).fetchall()]


def test_hosts_that_lie_cost_their_own_answers(hosts: Hosts) -> None:
    ways = ["html", "more columns", "other types", "cut short", "huge lengths", "odd notes", "injects", "slow"]
    with ExitStack() as running:
        liars = [running.enter_context(lying(how)) for how in ways]
        words = ("query", COUNT, "--format", "json", "--host-timeout", "5", "--timeout", "60")
        done = probe([hosts.addresses[0], *liars, hosts.addresses[1], NOBODY], *words)

    assert done.returncode == 3, done.stderr
    answer = json.loads(done.stdout)
    assert [list(row.values()) for row in answer["rows"]] == rows(hosts, [0, 1], COUNT)
    assert answer["answered"] == [hosts.addresses[0], hosts.addresses[1]]
    assert [failed["endpoint"] for failed in answer["unanswered"]] == [*liars, NOBODY]
    for how, failed in zip([*ways, "nobody"], answer["unanswered"], strict=True):
        seen = {"slow": "did not answer within", "nobody": "refused the connection"}.get(how, "cannot read")
        assert seen in failed["message"], how
    assert f"2 of 11 answered; not: {liars[0]}, " in done.stderr


def test_an_address_without_a_listener_has_no_answer(hosts: Hosts) -> None:
    done = probe([NOBODY, "127.0.0.2:1"], "query", COUNT)

    assert (done.returncode, done.stdout) == (4, "")
    assert "0 of 2 answered" in done.stderr


def test_a_host_that_fails_after_its_part_has_no_part_in_the_whole(hosts: Hosts) -> None:
    sql = "SELECT count(*) AS n FROM test.steps WHERE step > (SELECT avg(step) FROM test.steps)"

    done = probe([hosts.addresses[0], NOBODY, hosts.addresses[3]], "query", sql, "--format", "csv")

    assert done.returncode == 3
    assert done.stdout.split() == ["n", str(rows(hosts, [0, 3], sql)[0][0])]


def test_columns_and_tables_that_an_older_host_lacks_are_null_and_named(hosts: Hosts) -> None:
    both = [hosts.addresses[-1], hosts.older]
    sql = "SELECT host, count(*) AS n, count(ok) AS oks, sum(x) AS x FROM test.steps GROUP BY 1 ORDER BY 1"

    columns = probe(both, "query", sql, "--format", "json")
    table = probe(both, "query", "SELECT count(*) AS n FROM test.late", "--format", "csv")

    assert columns.returncode == table.returncode == 0, columns.stderr
    answer = json.loads(columns.stdout)
    assert answer["rows"][-1] == {"host": "older", "n": 2, "oks": 0, "x": 15.0}
    assert [list(row.values()) for row in answer["rows"][:-1]] == rows(hosts, [len(hosts.addresses) - 1], sql)
    assert answer["notes"] == [f"{hosts.older}: test.steps has no ok: NULL"]
    assert table.stdout.split() == ["n", "2"]
    assert f"{hosts.older}: there is no table test.late: no rows of it" in table.stderr


def test_one_older_host_among_many_is_found_out_wherever_it_stands(hosts: Hosts) -> None:
    servers = list(range(len(hosts.addresses)))
    sql = "SELECT host, count(*) AS n, count(ok) AS oks, max(x) AS x FROM test.steps GROUP BY 1 ORDER BY 1"
    late = "SELECT count(*) AS n FROM test.late"

    found = []
    for endpoints in ([hosts.older, *hosts.addresses], [*hosts.addresses, hosts.older]):
        found.append(probe(endpoints, "query", sql, "--format", "json"))
        found.append(probe(endpoints[::-1], "query", late, "--format", "json"))

    assert [done.returncode for done in found] == [0] * 4, [done.stderr for done in found]
    answers = [json.loads(done.stdout) for done in found]
    for answer in answers[::2]:
        assert [list(row.values()) for row in answer["rows"][:-1]] == rows(hosts, servers, sql)
        assert answer["rows"][-1] == {"host": "older", "n": 2, "oks": 0, "x": 8.0}
        assert answer["notes"] == [f"{hosts.older}: test.steps has no ok: NULL"]
    for answer in answers[1::2]:
        assert answer["rows"] == [{"n": 2}]
        assert answer["notes"][0].endswith("and 3 more: there is no table test.late: no rows of it")


def test_an_error_in_the_sql_blames_no_host(hosts: Hosts) -> None:
    column = probe(list(hosts.addresses[:2]), "query", "SELECT stepp FROM test.steps")
    table = probe(list(hosts.addresses[:2]), "query", "SELECT * FROM test.step")

    assert column.returncode == table.returncode == 1
    assert 'there is no column "stepp"\ntry: use step' in column.stderr
    assert 'line 1, column 15: there is no table "test.step"\ntry: use test.steps' in table.stderr
