"""The tables that a statement names: the others are not read from the target."""

from __future__ import annotations

import pytest

from probe_agent.sql.engine.gather import _names


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM torch.memory",
        'FROM "torch"."memory" LIMIT 1',
        "select 1 from TORCH . Memory m",
        "SELECT 1 FROM torch /* which */ . -- what\n memory",
        "SELECT torch.memory.ts FROM torch.memory",
    ],
)
def test_a_table_is_named_in_any_spelling(sql: str) -> None:
    assert _names(sql, "torch.memory")


@pytest.mark.parametrize(
    "sql",
    ["SELECT memory FROM torch.modules", "SELECT * FROM torch.memory_blocks", "SELECT m.memory FROM torch.modules m"],
)
def test_a_column_of_that_name_is_no_table(sql: str) -> None:
    assert not _names(sql, "torch.memory")
