"""Every statement of `probe status`, run by DuckDB over the tables as they are declared, and the lines it becomes."""

from __future__ import annotations

import duckdb
import pytest

from probe_agent.recorder.ring.table import COORDINATES
from probe_agent.sql.tables.declarations import known_tables
from probe_cli.commands.status import STATEMENTS, _of_loss, _of_steps
from probe_cli.text import by_reason


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_fits_the_tables(name: str) -> None:
    with duckdb.connect() as database:
        for table, columns in known_tables([]).items():
            if table in STATEMENTS[name]:
                database.execute(f"CREATE SCHEMA IF NOT EXISTS {table.partition('.')[0]}")
                types = ", ".join(f'"{column.name}" {column.sql_type}' for column in (*COORDINATES, *columns))
                database.execute(f"CREATE TABLE {table} ({types})")

        database.execute(STATEMENTS[name])


def test_the_first_step_with_a_bad_loss_is_told_even_if_newer_ones_are_finite() -> None:
    ((_, text),) = _of_loss({"lr": 0.1, "grad_norm": None}, {"now": 2.0, "before": 3.0, "first_bad": 7})

    assert text == "2 (3 100 steps ago), NaN or infinite since step 7, lr 0.1"


def test_a_step_number_of_our_own_is_marked() -> None:
    told = {"step": 7, "age": 1.0, "usual": 0.1, "lasted": 1.0, "samples": 80, "evaluating": None, "generating": None}

    ours = _of_steps({**told, "counted": False}, {"windows": 1})
    jobs = _of_steps({**told, "counted": True}, {"windows": 3, "usual": 0.08})

    assert ours == [("step", "7, counted from the attach, 1s ago, training, 10 steps/s (100 ms each), 80 samples/s")]
    assert jobs[1] == ("best", "80 ms in the best 50 steps; now +25%")


def test_what_is_not_judged_for_one_reason_is_one_line() -> None:
    gone = {name: "it has ended" for name in ("clipping", "schedule", "replicas", "restarts", "spans")}

    told = by_reason({**gone, "checks": "no answer in 5 s"}, most=3)

    assert told == ["clipping, schedule, replicas and 2 more: it has ended", "checks: no answer in 5 s"]
