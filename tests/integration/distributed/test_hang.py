"""A rank hangs in a collective that another one never calls: live and recorded tables show it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .conftest import Job, start_job

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Rank 0 waits for rank 1 in the third collective; both have been attached to after the first."""
    with start_job(tmp_path_factory.mktemp("job"), "hang") as job:
        job.done(1)
        sql = "SELECT 1 FROM torch.flight_recorder WHERE state = 'scheduled' AND age > 1.2"
        job.until(lambda: len(job.directory.targets()) == 2 and job.rows(sql, 0))
        yield job


@pytest.mark.situation(
    "hangs in a collective that another rank never calls", "Flight Recorder and process groups show it"
)
def test_flight_recorder_names_the_collective_it_hangs_in(job: Job) -> None:
    columns = '"group", group_desc, seq, op, state, bytes, dtype, shape, backend'

    hanging = job.rows(f"SELECT {columns} FROM torch.flight_recorder WHERE rank = 0 ORDER BY seq DESC")
    other = job.rows(f"SELECT {columns} FROM torch.flight_recorder WHERE rank = 1 ORDER BY seq DESC")

    assert hanging == [
        ["0", "default_pg", 3, "all_reduce", "scheduled", 248, "float32", "[62]", "gloo"],
        ["0", "default_pg", 2, "all_reduce", "completed", 244, "float32", "[61]", "gloo"],
        ["0", "default_pg", 1, "barrier", "completed", 0, None, None, "gloo"],
    ]
    assert other == hanging[1:]


def test_the_groups_progress_names_the_rank_that_is_missing(job: Job) -> None:
    sql = (
        'SELECT rank, "group", group_desc, backend, group_rank, size, ranks, last_enqueued, last_started,'
        " last_completed, last_op, last_state FROM torch.process_groups ORDER BY rank"
    )

    rows = job.rows(sql)

    assert rows == [
        [0, "0", "default_pg", "gloo", 0, 2, "0, 1", 3, None, 2, "all_reduce", "scheduled"],
        [1, "0", "default_pg", "gloo", 1, 2, "0, 1", 2, None, 2, "all_reduce", "completed"],
    ]


def test_the_ring_has_the_call_that_waits(job: Job) -> None:
    sql = "SELECT seq, op, shape, state, duration FROM python.collectives WHERE state != 'completed'"

    rows = job.until(lambda: job.rows(sql, 0))

    assert rows == [[3, "all_reduce", "[62]", "waiting", None]]


def test_times_are_now(job: Job) -> None:
    (row,) = job.rows("SELECT max(age), epoch(now()::TIMESTAMP - min(ts)) FROM torch.flight_recorder WHERE rank = 0")

    assert 0 < row[0] < 120
    assert abs(row[0] - row[1]) < 10
