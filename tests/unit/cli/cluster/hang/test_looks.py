"""The statements of a look, run by DuckDB over tables as they are declared, with rows made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import duckdb
import pytest

from probe_agent.recorder.ring.table import COORDINATES
from probe_agent.sql.tables.declarations import known_tables
from probe_cli.cluster.hang import looks

NOTICED = datetime(2026, 3, 2, 18, 2, 11)
CALL = {
    "group": "0", "op": "all_reduce", "seq": 41, "ts": int(NOTICED.timestamp() * 1e6), "state": "scheduled",
    "shape": "[4]", "dtype": "float32", "bytes": 16, "timeout": 1800.0, "started": None, "is_p2p": False,
}  # fmt: skip
GROUP = {"group": "0", "group_desc": "default_pg", "ranks": "[0, 1]", "last_enqueued": 41}


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as database:
        for name, columns in known_tables([]).items():
            if name.startswith(("python.stall", "python.collectives")):
                database.execute("CREATE SCHEMA IF NOT EXISTS python")
                types = ", ".join(f'"{column.name}" {column.sql_type}' for column in (*COORDINATES, *columns))
                database.execute(f"CREATE TABLE {name} ({types})")
        insert(database, "python.stalls", ts=NOTICED, state="stalled")
        for section, content in (("process_groups", GROUP), ("flight_recorder", CALL)):
            insert(
                database, "python.stall_snapshot", ts=NOTICED, section=section, number=0, content=json.dumps(content)
            )
        yield database


def insert(database: duckdb.DuckDBPyConnection, table: str, **row: Any) -> None:
    names, marks = ", ".join(f'"{name}"' for name in row), ", ".join("?" * len(row))
    database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))


def of_stall(database: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]]:
    """The groups and calls of the newest stall, each by its group and number."""
    groups = database.execute(looks._STALLED_GROUPS).fetchall()
    calls = database.execute(looks._STALLED_CALLS).fetchall()
    return [(name, newest) for name, _, _, newest in groups] + [(call[0], call[2]) for call in calls]


def test_the_snapshot_of_a_stall_stands_in_for_flight_recorder(database: duckdb.DuckDBPyConnection) -> None:
    insert(database, "python.collectives", ts=NOTICED - timedelta(seconds=60), start=NOTICED - timedelta(seconds=60))

    assert of_stall(database) == [("0", 41), ("0", 41)]


def test_a_call_since_the_snapshot_makes_it_too_old(database: duckdb.DuckDBPyConnection) -> None:
    insert(database, "python.collectives", ts=NOTICED + timedelta(seconds=1), start=NOTICED + timedelta(seconds=1))

    assert of_stall(database) == []


def test_a_stall_that_is_over_tells_nothing(database: duckdb.DuckDBPyConnection) -> None:
    insert(database, "python.stalls", ts=NOTICED + timedelta(seconds=5), state="over")

    assert of_stall(database) == []
