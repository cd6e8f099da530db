"""Each rule's own statement, run by DuckDB over tables as they are declared, with rows made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import duckdb
import pytest

from probe_agent.recorder.ring.table import COORDINATES
from probe_agent.sql.tables.declarations import known_tables
from probe_cli.diagnose.evidence import together
from probe_cli.diagnose.finding import Finding
from probe_cli.diagnose.rule import Asked
from probe_cli.diagnose.rules import rules

Tables = Mapping[str, Sequence[Mapping[str, Any]]]
Judged = Callable[..., list[Finding]]


@pytest.fixture(scope="session")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as database:
        yield database


@pytest.fixture
def judged(database: duckdb.DuckDBPyConnection) -> Judged:
    """The findings of a rule over the tables of each rank, with thresholds as `--set` gives them."""

    def judge(name: str, *ranks: Tables, world_size: int | None = None, **limits: float) -> list[Finding]:
        rule = rules()[name]
        size = world_size or len(ranks)
        asked = [
            Asked(rank, "node1", 100 + rank, size, rows_of(database, rule.sql, told)) for rank, told in enumerate(ranks)
        ]
        return list(rule.judge(asked, rule.limits({f"{name}.{key}": value for key, value in limits.items()})))

    return judge


def rows_of(database: duckdb.DuckDBPyConnection, sql: str, tables: Tables) -> list[dict[str, Any]]:
    """The answer as it comes over HTTP: through JSON."""
    for name, columns in known_tables([]).items():
        if name not in sql:
            continue
        database.execute(f"CREATE SCHEMA IF NOT EXISTS {name.partition('.')[0]}")
        types = ", ".join(f'"{column.name}" {column.sql_type}' for column in (*COORDINATES, *columns))
        database.execute(f"CREATE OR REPLACE TABLE {name} ({types})")
        if rows := tables.get(name):
            names = ", ".join(f'"{key}"' for key in rows[0])
            marks = ", ".join(f"({', '.join('?' * len(row))})" for row in rows)
            values = [value for row in rows for value in row.values()]
            database.execute(f"INSERT INTO {name} ({names}) VALUES {marks}", values)
    ((text,),) = database.execute(f"SELECT to_json(told) FROM ({together({'told': sql})})").fetchall()
    return json.loads(text) if text else []


Steps = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def steps() -> Steps:
    """`num` steps of 0.1 s, with columns that are given: a value, or a function of the step's number."""

    def make(num: int, **columns: Any) -> list[dict[str, Any]]:
        usual = {"duration": 0.1, "data_wait": 0.001, "forward": 0.03, "backward": 0.05, "optimizer": 0.01}
        rows = []
        for step in range(num):
            told = {**usual, **columns}
            row = {name: value(step) if callable(value) else value for name, value in told.items()}
            rows.append({"step": step, "ts": datetime(2026, 1, 1) + timedelta(seconds=0.1 * step), **row})
        return rows

    return make
