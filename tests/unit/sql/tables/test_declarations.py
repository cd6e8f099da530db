"""Live and recorded tables are declared alike."""

from __future__ import annotations

from probe_agent.recorder.ring.table import KINDS
from probe_agent.sql.tables.declarations import live_tables, recorded_tables


def test_the_live_tables_are_found() -> None:
    assert {"python.backtrace", "python.stacks", "torch.flight_recorder"} <= set(live_tables())


def test_no_table_is_both_recorded_and_live() -> None:
    assert not set(recorded_tables()) & set(live_tables())
    assert {"python.steps", "python.torch_trace", "probe.errors", "probe.overhead"} <= set(recorded_tables())


def test_every_column_of_every_table_has_a_known_kind_and_a_meaning() -> None:
    columns = [column for table in {**recorded_tables(), **live_tables()}.values() for column in table.columns]

    assert all(column.kind in KINDS and column.meaning for column in columns)
