"""Clocks in statements become one constant time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from probe_agent.sql.merged import MergeExecutor
from probe_cli.cluster.sql.functions import with_one_time

from .hosts import merging


@pytest.fixture(scope="module")
def executor() -> Iterator[MergeExecutor]:
    executor = merging({})
    yield executor
    executor.close()


def test_every_clock_becomes_a_constant_of_its_type(executor: MergeExecutor) -> None:
    root = executor.parsed("SELECT now() AS n, current_date, today() WHERE now() > current_timestamp - INTERVAL 1 DAY")

    text = executor.text_of(with_one_time(root, (), executor))  # type: ignore[arg-type]

    assert not any(clock in text.lower() for clock in ("now(", "current_", "today("))
    assert (text.count("TIMESTAMP WITH TIME ZONE"), text.count("DATE")) == (3, 2)
    assert " AS n" in text


def test_a_column_of_that_name_and_a_statement_without_clocks_stay(executor: MergeExecutor) -> None:
    root = executor.parsed("SELECT current_date, x FROM main.t")

    assert with_one_time(root, {"current_date"}, executor) is root  # type: ignore[arg-type]
