"""Seven hosts in one process: real host servers on TCP over rings that are no longer written."""

from __future__ import annotations

import datetime
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
from support.ports import free_port

from benchmarks.simulated import JOB, add_target
from probe_agent.recorder.ring.table import Column, Table

ROOT = Path(__file__).parents[3]
NUM_HOSTS = 7
BIN = Path(sys.executable).parent


class Steps(Table):
    name = "test.steps"
    doc = "Rows of every kind."
    columns = (
        Column("step", "int", "", ""),
        Column("ts", "time", "", ""),
        Column("x", "float", "", "with NULL"),
        Column("y", "float", "", "with NaN"),
        Column("far", "float", "", "small differences of large numbers"),
        Column("name", "text", "", "with NULL"),
        Column("ok", "bool", "", ""),
    )


class Events(Table):
    name = "test.events"
    doc = "Rows to join with."
    columns = (Column("step", "int", "", ""), Column("kind", "text", "", ""), Column("cost", "float", "", ""))


class Late(Table):
    """On the last host only, as in a newer version."""

    name = "test.late"
    doc = "Few have it."
    columns = (Column("step", "int", "", ""),)


class OldSteps(Table):
    """The declaration of an older version: fewer columns, and integers for `x`."""

    name = "test.steps"
    doc = "Rows of every kind."
    columns = (*Steps.columns[:2], Column("x", "int", "", ""))


@dataclass(frozen=True)
class Hosts:
    """The addresses, and one database with the rows of all, `server` before the columns."""

    addresses: tuple[str, ...]
    older: str
    base: Path
    whole: duckdb.DuckDBPyConnection

    def of(self, servers: list[int]) -> duckdb.DuckDBPyConnection:
        """Return the database with the rows of these hosts alone."""
        listed = ", ".join(map(str, servers))
        for table in ("steps", "events"):
            self.whole.execute(
                f"CREATE OR REPLACE VIEW test.{table} AS"
                f" SELECT * EXCLUDE (server) FROM main.{table} WHERE server IN ({listed})"
            )
        return self.whole


def rows_of_steps(draw: random.Random, number: int) -> list[tuple[object, ...]]:
    return [
        (
            draw.randrange(20),
            draw.randrange(0, 10**9),
            draw.choice((None, draw.uniform(-5, 5), float(draw.randrange(4)))),
            draw.choice((math.nan, draw.random(), draw.random(), draw.random())),
            1e4 + draw.random(),
            draw.choice((None, "a", "b", "it's", "")),
            draw.random() < 0.4,
        )
        for _ in range(number)
    ]


def rows_of_events(draw: random.Random, number: int) -> list[tuple[object, ...]]:
    return [(draw.randrange(25), draw.choice(("save", "load", None)), draw.uniform(0, 9)) for _ in range(number)]


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    base = tmp_path_factory.mktemp("hosts")
    whole = duckdb.connect()
    whole.execute("SET TimeZone='UTC'; CREATE SCHEMA test")
    coordinates = "server BIGINT, host VARCHAR, pid BIGINT, rank BIGINT, world_size BIGINT, job VARCHAR"
    whole.execute(
        f"CREATE TABLE steps ({coordinates}, step BIGINT, ts TIMESTAMP, x DOUBLE, y DOUBLE, far DOUBLE, name VARCHAR,"
        " ok BOOLEAN)"
    )
    whole.execute(f"CREATE TABLE events ({coordinates}, step BIGINT, kind VARCHAR, cost DOUBLE)")
    draw = random.Random(5)
    rank = 0
    for server in range(NUM_HOSTS):
        for target in range(draw.choice((1, 2, 3))):
            here = (f"host{server}", 900_000 + rank, rank, 99)
            steps = rows_of_steps(draw, 0 if server == 2 else draw.randrange(60))  # one host without rows
            events = rows_of_events(draw, draw.randrange(12))
            tables = [(Steps, steps), (Events, events)]
            if server == NUM_HOSTS - 1 and target == 0:
                tables.append((Late, [(1,), (2,)]))
            add_target(base / str(server), *here, tables)
            placed = (server, *here, JOB)
            start = datetime.datetime(1970, 1, 1)
            for step, ts, *others in steps:
                assert isinstance(ts, int)
                _insert(whole, "steps", (*placed, step, start + datetime.timedelta(microseconds=ts), *others))
            for event in events:
                _insert(whole, "events", (*placed, *event))
            rank += 1
    add_target(base / str(NUM_HOSTS), "older", 990_000, 90, 99, [(OldSteps, [(3, 0, 7), (4, 0, 8)])])
    addresses = tuple(f"127.0.0.{at + 1}:{free_port()}" for at in range(NUM_HOSTS + 1))
    command = [sys.executable, "-m", "benchmarks.simulated", str(base), *addresses]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline() == "ready\n"
        yield Hosts(addresses[:NUM_HOSTS], addresses[NUM_HOSTS], base, whole)
        serving.terminate()


def _insert(whole: duckdb.DuckDBPyConnection, table: str, row: tuple[object, ...]) -> None:
    whole.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", list(row))
