"""A table with several columns of text: its strings are read once, by a number in each column."""

from __future__ import annotations

import numpy as np

from probe_agent.recorder.ring.table import Column
from probe_agent.sql.engine.databases import Database
from probe_agent.sql.engine.source import TableSource
from probe_agent.sql.tables.live_table import Part

NAMES = ("op", "phase", "state")
COLUMNS = (Column("step", "int", "", ""), *(Column(name, "text", "", "") for name in NAMES))
STRINGS = ["all_reduce", "forward", "it's", ""]


def part(rank: int) -> Part:
    numbers = {name: ((np.arange(6) + at) % 5).astype("<u4") for at, name in enumerate(NAMES)}  # 0 is NULL
    coordinates = {"host": "node0", "pid": 100 + rank, "rank": rank, "world_size": 2, "job": "abcdef"}
    return Part(coordinates, COLUMNS, [{"step": np.arange(6), **numbers}], STRINGS)


def test_columns_of_text_have_their_strings_and_the_rest_of_the_row_stays_as_it_is() -> None:
    database = Database(512)
    source = TableSource("test.rows", COLUMNS, [part(0)])
    database.show({"test.rows": source.register(database.connection)})

    found = database.connection.execute("SELECT rank, step, op, phase, state FROM test.rows ORDER BY step").fetchall()

    texts = [None, *STRINGS]
    assert found == [(0, step, *(texts[(step + at) % 5] for at in range(3))) for step in range(6)]
    source.unregister(database.connection)


def test_the_strings_of_a_part_are_listed_once_whatever_the_number_of_its_columns() -> None:
    database = Database(512)
    source = TableSource("test.rows", COLUMNS, [part(0)])

    select = source.register(database.connection)

    assert select.count("list(text") == 1  # each one takes DuckDB 3 ms to plan, used or not
    source.unregister(database.connection)
