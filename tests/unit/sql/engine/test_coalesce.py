"""Small parts that are combined hold the same rows."""

from __future__ import annotations

import numpy as np
import pytest

from probe_agent.recorder.ring.table import NULL_FLOAT, Column
from probe_agent.sql.engine import coalesce as module
from probe_agent.sql.engine.databases import Database
from probe_agent.sql.engine.source import TableSource
from probe_agent.sql.tables.live_table import Part

COLUMNS = (
    Column("step", "int", "", ""),
    Column("seconds", "float", "s", ""),
    Column("name", "text", "", ""),
    Column("good", "bool", "", ""),
    Column("ts", "time", "", ""),
)
SQL = "SELECT * FROM test.rows ORDER BY rank NULLS LAST, step"


def coordinates(rank: int | None) -> dict[str, object]:
    place = {"rank": rank, "world_size": 8, "job": None if rank is None else "abcdef"}
    return {"host": f"node{(rank or 0) // 2}", "pid": 100 + (rank or 0), **place}


def part(rank: int | None, strings: list[str] | None, *lengths: int) -> Part:
    """A part of segments of that length; text as numbers of `strings`, or as text."""
    segments = []
    for first, length in enumerate(lengths):
        steps = np.arange(length) + 1000 * first
        numbers = (steps % (len(strings) + 1)).astype("<u4") if strings is not None else None
        texts = np.array([f"text{step % 3}" if step % 4 else None for step in steps], object)
        segments.append(
            {
                "step": steps.astype("<i8"),
                "seconds": np.where(steps % 5 == 0, NULL_FLOAT, np.where(steps % 7 == 0, np.nan, steps / 3)),
                "name": texts if numbers is None else numbers,
                "good": steps % 2 == 0,
                "ts": (steps * 1_000_000).view("datetime64[us]"),
            }
        )
    return Part(coordinates(rank), COLUMNS, segments, strings)


def rows(parts: list[Part]) -> tuple[list[object], int]:
    """Return what DuckDB reads, and the number of arrays it was given."""
    database = Database(512)
    source = TableSource("test.rows", COLUMNS, parts)
    database.show({"test.rows": source.register(database.connection)})
    num_shown = len(source._registered)
    found = database.connection.execute(SQL)
    described = [entry[:2] for entry in found.description or ()]
    # A NaN equals nothing: compared as text.
    answer = [described, *(tuple(map(repr, row)) for row in found.fetchall())]
    source.unregister(database.connection)
    return answer, num_shown


@pytest.mark.parametrize(
    ("parts", "num_shown"),
    [
        ([part(rank, [f"rank{rank}", "both"], 40, 7) for rank in range(8)], 2),
        ([part(0, ["a"], 3), part(1, [], 4), part(2, ["b", "c", "d"], 0, 5)], 2),
        ([part(0, None, 9), part(1, None, 2)], 1),
        ([part(0, ["ring"], 9), part(1, None, 2), part(3, None, 4)], 3),
        ([part(0, ["no rank is NULL"], 3), part(None, ["there"], 3, 4)], 4),
    ],
    ids=["many", "few strings", "live", "both", "without coordinates"],
)
def test_the_rows_are_the_same(parts: list[Part], num_shown: int, monkeypatch: pytest.MonkeyPatch) -> None:
    together = rows(parts)
    monkeypatch.setattr(module, "MAX_ROWS", -1)
    apart = rows(parts)

    assert together[0] == apart[0]
    assert len(together[0]) > 1
    assert together[1] == num_shown


def test_a_large_table_stays_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 10)

    assert module.coalesce([one := part(0, [], 6), other := part(1, [], 5)]) == [one, other]
