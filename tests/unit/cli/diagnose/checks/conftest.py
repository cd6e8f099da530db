"""Each check's own statement, run by DuckDB over tables as they are declared, with rows made by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import pytest

from diagnose.rules.conftest import Tables, rows_of
from diagnose.test_judge import TARGET
from probe_cli.diagnose import Diagnosis, Evidence
from probe_cli.diagnose.check import Line, checked
from probe_cli.diagnose.checks import checks

Checked = Callable[..., list[Line]]
SILENT = Diagnosis((), {}, {}, ())


@pytest.fixture(scope="session")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as database:
        database.execute("SET TimeZone = 'UTC'")
        yield database


@pytest.fixture
def lines(database: duckdb.DuckDBPyConnection) -> Checked:
    """The lines of a check over the tables of each rank."""

    def check_of(name: str, *ranks: Tables, diagnosis: Diagnosis = SILENT) -> list[Line]:
        check = checks()[name]
        told = []
        for rank, tables in enumerate(ranks):
            rows = {check.question_asked.name: rows_of(database, check.sql, tables)} if check.sql else {}
            told.append((replace(TARGET, rank=rank, pid=100 + rank, world_size=len(ranks)), Evidence(rows, {}, ())))
        return checked([check], told, diagnosis)

    return check_of


def env(kind: str, **values: object) -> Sequence[Mapping[str, Any]]:
    return [{"kind": kind, "name": name, "value": str(value)} for name, value in values.items()]
