"""What ends queries: one thread for all of them, and each in its own time."""

from __future__ import annotations

import threading
from time import monotonic

import duckdb
import pytest

from probe_agent.sql.deadline import Deadline

ENDLESS = "SELECT count(*) FROM range(10_000_000) a, range(10_000_000) b WHERE hash(a.range, b.range) = 1"


def run(deadline: Deadline) -> float:
    """After how long an endless query was interrupted."""
    connection = duckdb.connect()
    began = monotonic()
    deadline.start(connection)
    try:
        with pytest.raises(duckdb.InterruptException):
            connection.execute(ENDLESS).fetchall()
    finally:
        deadline.end()
        connection.close()
    return monotonic() - began


def test_each_query_ends_in_its_own_time_beside_others() -> None:
    deadlines = [Deadline(1e300), Deadline(0.6), Deadline(0.1)]
    took: dict[float, float] = {}
    threads = [threading.Thread(target=lambda d=each: took.update({d.timeout_s: run(d)})) for each in deadlines]

    for thread in threads:
        thread.start()
    for thread in threads[1:]:
        thread.join(60)
    deadlines[0].cancel()
    threads[0].join(60)

    assert [deadline.reason for deadline in deadlines] == ["cancelled", "timed out", "timed out"]
    assert took[0.1] >= 0.1
    assert took[0.6] >= 0.6


def test_what_was_cancelled_before_it_began_ends_at_once() -> None:
    deadline = Deadline(3600.0)

    deadline.cancel()

    assert run(deadline) < 60


def test_a_query_that_is_over_is_left_alone() -> None:
    connection = duckdb.connect()
    deadline = Deadline(0.05)
    deadline.start(connection)
    deadline.end()

    (counted,) = connection.execute("SELECT count(*) FROM range(100_000_000) WHERE hash(range) % 7 = 1").fetchall()

    assert counted[0] > 0
    assert deadline.reason is None


def test_all_share_a_thread() -> None:
    before = threading.active_count()
    connection = duckdb.connect()

    deadlines = [Deadline(30.0) for _ in range(20)]
    for deadline in deadlines:
        deadline.start(connection)
    during = threading.active_count()
    for deadline in deadlines:
        deadline.end()

    assert during <= before + 1
