"""Traffic of a query, the formats of its answer, and repeated queries."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import duckdb
import pytest
from support.commands import environment

from probe_cli.client import Client

from .conftest import Hosts
from .test_hosts_that_fail import COUNT, probe, rows
from .test_one_answer import asked, decoded


def rounds(hosts: Hosts, sql: str) -> list[dict[str, object]]:
    """Return what each round asked according to EXPLAIN."""
    (outcome,) = asyncio.run(asked(hosts.addresses, [f"EXPLAIN {sql}"]))
    columns, found = decoded(outcome)
    return [dict(zip((name for name, _ in columns), row, strict=True)) for row in found]


@pytest.mark.parametrize(
    ("sql", "asked_for"),
    [
        ("SELECT avg(x) FROM test.steps", ["SELECT sum(x) AS a0, count(x) AS a1 FROM test.steps"]),
        (
            "SELECT * EXCLUDE (far, ts) FROM test.steps ORDER BY x LIMIT 3",
            ['SELECT host AS c0, pid AS c1, rank AS c2, world_size AS c3, job AS c4, step AS c5, x AS c6, y AS c7,'
             ' "name" AS c8, ok AS c9 FROM test.steps ORDER BY x LIMIT (3)'],
        ),
        (
            "SELECT s.rank, median(e.cost) FROM test.steps s JOIN test.events e USING (step) WHERE s.ok GROUP BY 1",
            ["SELECT rank, step, ok FROM test.steps WHERE ok", "SELECT step, \"cost\" FROM test.events"],
        ),
        ("SELECT max(far) FROM test.steps WHERE step = (SELECT max(step) FROM test.events)", None),
    ],
)  # fmt: skip
def test_hosts_compute_what_they_can_and_send_what_is_needed(
    hosts: Hosts, sql: str, asked_for: list[str] | None
) -> None:
    found = rounds(hosts, sql)

    if asked_for is None:
        assert [step["reads"] for step in found] == ["test.events", "test.steps"]
        assert "max(far)" in str(found[1]["asked"])
        assert "SELECT max(step)" not in str(found[1]["asked"])
    else:
        assert sorted(str(step["asked"]).replace(" LIMIT 3", " LIMIT (3)") for step in found) == sorted(asked_for)


def test_only_some_of_many_hosts_are_asked_for_their_tables(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for_tables = set()
    get = Client.get

    async def counted(self: Client, kind: type[object], path: str, **params: str) -> object:
        asked_for_tables.add(self.endpoint)
        return await get(self, kind, path, **params)

    monkeypatch.setattr(Client, "get", counted)
    (outcome,) = asyncio.run(asked(hosts.addresses, ["SELECT count(*) FROM test.steps"]))

    assert decoded(outcome)[1] == rows(hosts, list(range(len(hosts.addresses))), "SELECT count(*) FROM test.steps")
    assert 1 <= len(asked_for_tables) <= 3


def test_max_rows_is_for_the_whole_and_not_for_its_parts(hosts: Hosts) -> None:
    statements = ["SELECT count(*) FROM test.steps", "SELECT far FROM test.steps ORDER BY far DESC"]

    counted, listed = asyncio.run(asked(hosts.addresses, statements, max_rows=2))

    servers = list(range(len(hosts.addresses)))
    assert decoded(counted)[1] == rows(hosts, servers, statements[0])
    assert decoded(listed)[1] == rows(hosts, servers, statements[1])[:2]
    assert listed.truncated
    assert not counted.truncated


def test_a_statement_that_would_move_too_much_is_refused_with_its_table(hosts: Hosts) -> None:
    crossed = "SELECT count(*) FROM test.steps a, test.steps b WHERE a.far < b.far"
    filtered = "SELECT a.*, b.* FROM test.steps a JOIN test.events b ON a.step = b.step WHERE a.step > 2 AND b.cost > 1"

    known = probe(list(hosts.addresses), "query", crossed, "--max-transfer", "0.001")
    received = probe(list(hosts.addresses), "query", filtered, "--max-transfer", "0.005")

    assert (known.returncode, known.stdout) == (received.returncode, received.stdout) == (1, "")
    assert "the statement needs the rows of test.steps from 7 hosts, about" in known.stderr
    assert "the hosts send more than 0.005 MiB, of test." in received.stderr
    assert "--max-transfer" in received.stderr


@pytest.mark.parametrize("format_", ["table", "jsonl", "csv", "arrow", "parquet"])
def test_every_format_holds_one_answer(hosts: Hosts, format_: str, tmp_path: Path) -> None:
    file = tmp_path / "answer"

    done = probe(list(hosts.addresses[:2]), "query", COUNT, "--format", format_, "-o", str(file))

    assert (done.returncode, done.stderr) == (0, "")
    theirs = rows(hosts, [0, 1], COUNT)
    if format_ == "parquet":
        assert [list(row) for row in duckdb.sql(f"FROM read_parquet('{file}')").fetchall()] == theirs
    elif format_ == "arrow":
        import nanoarrow

        found = nanoarrow.ArrayStream.from_readable(file.read_bytes()).read_all().to_pylist()
        assert [list(row.values()) for row in found] == theirs
    elif format_ == "jsonl":
        assert [list(json.loads(line).values()) for line in file.read_text().splitlines()] == theirs
    else:
        words = file.read_text().replace(",", " ").split()
        assert [word for word in words if not word.startswith("-")] == ["host", "n"] + [
            str(value) for row in theirs for value in row
        ]


def test_watch_asks_again_and_again(hosts: Hosts) -> None:
    done = probe(list(hosts.addresses[:2]), "watch", COUNT, "-n", "0.1", "--count", "2", "--format", "csv")

    assert done.returncode == 0, done.stderr
    once = ["host,n", *(f"{host},{n}" for host, n in rows(hosts, [0, 1], COUNT))]
    assert done.stdout.splitlines() == once * 2


def test_ctrl_c_ends_watch_while_it_waits(hosts: Hosts) -> None:
    command = ["probe", "-t", hosts.addresses[0], "-t", hosts.addresses[1], "watch", COUNT, "-n", "60"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as watching:
        assert watching.stdout is not None
        first = [watching.stdout.readline() for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        _, said = watching.communicate(timeout=30)

    assert first[1].split() == ["host", "n"]
    assert (watching.returncode, said.strip()) == (130, "")
