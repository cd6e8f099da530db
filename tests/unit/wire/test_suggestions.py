"""Suggestions for a name that does not exist."""

from __future__ import annotations

import pytest

from probe_agent.sql.tables.declarations import live_tables, recorded_tables
from probe_agent.wire import suggest_column, suggest_table, suggestions

TABLES = {
    name: [column.name for column in table.columns] for name, table in {**recorded_tables(), **live_tables()}.items()
}


@pytest.mark.parametrize(
    ("table", "name", "meant"),
    [
        ("python.steps", "time", ["ts", "duration"]),
        ("python.steps", "Learning_Rate", ["lr"]),
        ("python.steps", "memory", ["allocated", "reserved", "rss"]),
        ("python.torch_trace", "time", ["ts", "duration"]),
        ("python.torch_trace", "name", ["module"]),
        ("python.stacks", "name", ["func", "thread"]),
        ("python.stacks", "line", ["lineno"]),
        ("python.steps", "duratoin", ["duration"]),
        ("python.steps", "micro", ["micro_batches"]),
        ("python.steps", "xyzzy", []),
    ],
)
def test_a_wrong_column_suggests_those_that_the_table_has(table: str, name: str, meant: list[str]) -> None:
    assert suggest_column(name, TABLES[table]) == meant


@pytest.mark.parametrize(
    ("name", "near", "having"),
    [
        ("steps", ["python.steps"], []),
        ("pyhton.steps", ["python.steps"], []),
        ("trace", ["python.torch_trace", "torch.modules"], []),
        ("gpu", ["gpu.samples", "torch.memory"], []),
        ("loss", [], ["python.checkpoints", "python.steps"]),
        ("xyzzy", [], []),
    ],
)
def test_a_wrong_table_suggests_tables_and_those_with_such_a_column(
    name: str, near: list[str], having: list[str]
) -> None:
    assert suggest_table(name, TABLES) == (near, having)


def test_every_word_leads_to_something_that_exists() -> None:
    columns = {column for names in TABLES.values() for column in names}

    for words, known in ((suggestions._COLUMN_WORDS, columns | {"host", "pid"}), (suggestions._TABLE_WORDS, TABLES)):
        assert {name for meant in words.values() for name in meant} <= set(known)
