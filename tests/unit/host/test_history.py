"""Rates over time, and the tables of the host as they are on this one."""

from __future__ import annotations

import os

import pytest

from probe_agent.host import History
from probe_agent.host.history import INTERVAL_S, KEPT
from probe_agent.procfs import read_process
from probe_agent.sql.engine.databases import Database
from probe_agent.sql.engine.source import TableSource
from probe_agent.sql.tables.host_disks import HostDisks
from probe_agent.sql.tables.host_kernel_log import HostKernelLog
from probe_agent.sql.tables.host_network import HostNetwork
from probe_agent.sql.tables.host_pressure import HostPressure
from probe_agent.sql.tables.live_table import HostTable
from probe_agent.targets import Target


def test_the_last_hour_is_kept() -> None:
    assert INTERVAL_S * KEPT >= 3600


def test_without_a_sampler_a_question_takes_two_readings() -> None:
    tracks = History().tracks("network")

    times, rates = tracks["tcp"]
    assert len(times) == len(rates) == 1
    assert rates[0][3] >= 0


def test_a_sampler_adds_to_what_a_question_sees() -> None:
    history = History()
    with history.sampling():
        first = len(history.tracks("pressure", also=["host"])["host"][0])

    assert first >= 1


@pytest.mark.parametrize("table", [HostDisks, HostKernelLog, HostNetwork, HostPressure])
def test_a_table_of_this_host_has_its_columns_and_rows_or_a_reason(table: type[HostTable]) -> None:
    target = Target("/nowhere/probe-0/1-1", {"rank": 3, "world_size": 8, "host": "here"}, read_process(os.getpid()))
    parts, notes = table.take_host([target])
    database = Database(512)

    source = TableSource(table.name, table.columns, parts)
    database.show({table.name: source.register(database.connection)})
    names = ", ".join(column.name for column in table.columns)
    rows = database.connection.execute(f"SELECT host, rank, {names} FROM {table.name}").fetchall()

    assert rows or notes
    assert all(row[0] for row in rows)
    if table is HostDisks:
        assert {row[1] for row in rows} == {3}
