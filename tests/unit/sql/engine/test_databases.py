"""A reused database shows each query its own tables and nothing of earlier ones."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

from probe_agent.errors import NoAnswer
from probe_agent.sql.engine.databases import Database, Databases

NAMES = "SELECT schema_name || '.' || view_name FROM duckdb_views() WHERE NOT internal AND NOT temporary ORDER BY ALL"


def views_in(database: Database) -> list[str]:
    return [name for (name,) in database.connection.execute(NAMES).fetchall()]


def test_only_the_views_of_this_query_are_there() -> None:
    database = Database(512)

    database.show({"python.steps": "SELECT 1 AS step", "python.stacks": "SELECT 'f' AS func"})
    first = views_in(database)
    database.show({"python.steps": "SELECT 2 AS step", 'odd "schema.its "table"': "SELECT 3 AS a"})
    second = views_in(database)
    read = database.connection.execute("SELECT step FROM python.steps").fetchall()
    database.show({})

    assert first == ["python.stacks", "python.steps"]
    assert second == ['odd "schema.its "table"', "python.steps"]
    assert read == [(2,)]
    assert views_in(database) == []


def test_a_view_that_stays_shows_the_arrays_of_the_next_query() -> None:
    databases = Databases()
    select = "SELECT a FROM rows"

    with databases.lend(512) as first:
        first.connection.register("rows", {"a": np.array([1, 2])})
        first.show({"test.t": select})
        seen = [first.connection.execute("SELECT sum(a) FROM test.t").fetchall()]
        first.connection.unregister("rows")
    with databases.lend(512) as again:
        with pytest.raises(duckdb.Error):
            again.connection.execute("SELECT sum(a) FROM test.t").fetchall()
        again.connection.register("rows", {"a": np.array([3, 4, 5])})
        again.show({"test.t": select})
        seen.append(again.connection.execute("SELECT sum(a) FROM test.t").fetchall())

    assert again is first
    assert seen == [[(3,)], [(12,)]]


def test_a_query_that_failed_leaves_no_database_behind() -> None:
    databases = Databases()

    with pytest.raises(ValueError, match="on the way"), databases.lend(512) as first:
        raise ValueError("on the way")
    with databases.lend(512) as second:
        pass

    assert second is not first


def test_a_target_that_does_not_answer_costs_no_database() -> None:
    databases = Databases()

    with pytest.raises(NoAnswer, match="no recorder listens"), databases.lend(512) as first:
        raise NoAnswer("no recorder listens", "attach again")
    with databases.lend(512) as second:
        answer = second.connection.execute("SELECT 1").fetchall()

    assert second is first
    assert answer == [(1,)]
