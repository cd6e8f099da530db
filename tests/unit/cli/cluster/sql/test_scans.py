"""Which columns and rows of tables a statement needs, read from plans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from probe_agent.sql.merged import MergeExecutor
from probe_cli.cluster.sql.scans import fetched
from probe_cli.cluster.sql.split import Splitter

from .hosts import merging

TABLES = {
    "test.steps": {"rank": "BIGINT", "step": "BIGINT", "x": "DOUBLE", "name": "VARCHAR"},
    "test.events": {"rank": "BIGINT", "step": "BIGINT", "cost": "DOUBLE"},
}


@pytest.fixture(scope="module")
def executor() -> Iterator[MergeExecutor]:
    executor = merging(TABLES)
    yield executor
    executor.close()


def needed(executor: MergeExecutor, sql: str) -> dict[str, tuple[list[str], str]]:
    """Columns and filter of each table that is needed."""
    found = {}
    for part in fetched(executor, Splitter(executor, TABLES), sql, TABLES):  # type: ignore[arg-type]
        columns = [name for name, _ in part.columns]
        found[part.table] = (columns, executor.text_of(part.select).partition(" WHERE ")[2])
    return found


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1 + 1", {}),
        ("SELECT median(x) FROM test.steps", {"test.steps": (["x"], "")}),
        ("SELECT median(x) FROM test.steps WHERE step > 5", {"test.steps": (["step", "x"], "(step > 5)")}),
        (
            "SELECT s.rank, e.cost FROM test.steps s JOIN test.events e USING (step) WHERE s.x > 0.5 AND e.rank = 2",
            {
                "test.steps": (["rank", "step", "x"], "(x > CAST('0.5' AS DOUBLE))"),
                "test.events": (["rank", "step", "cost"], "(rank = 2)"),
            },
        ),
        (
            "SELECT a.x FROM test.steps a JOIN test.steps b ON a.rank = b.rank WHERE a.step = 1 AND b.step = 2",
            {"test.steps": (["rank", "step", "x"], "((step = 1) OR (step = 2))")},
        ),
        (
            "SELECT count(*) FROM test.steps a, test.steps b WHERE a.step = 1",
            {"test.steps": (["step"], "")},
        ),
    ],
)
def test_the_optimizer_tells_columns_and_filters(
    executor: MergeExecutor, sql: str, expected: dict[str, tuple[list[str], str]]
) -> None:
    assert needed(executor, sql) == expected


def test_a_float_in_a_filter_stays_what_it_is(executor: MergeExecutor) -> None:
    found = needed(executor, "SELECT median(step) FROM test.steps WHERE x < 0.30000000000000004")

    assert "CAST('0.30000000000000004' AS DOUBLE)" in found["test.steps"][1]


@pytest.mark.parametrize(
    "condition",
    ["random() < x", "name IN (SELECT name FROM test.steps)", "x < 'infinity'::DOUBLE", "now() > '2026-01-01'"],
)
def test_a_filter_that_is_not_surely_read_asks_for_no_fewer_rows(executor: MergeExecutor, condition: str) -> None:
    columns, rows = needed(executor, f"SELECT median(step) FROM test.steps WHERE {condition}")["test.steps"]

    assert "step" in columns
    assert rows == ""
