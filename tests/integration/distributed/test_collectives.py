"""python.collectives of a real job: every way to call a collective is recorded, and recording changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Job, start_job

pytestmark = pytest.mark.torch

STEPS_OF_DDP = 3  # of the target's program


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    with start_job(tmp_path_factory.mktemp("job"), "every") as job:
        job.done(1)
        for rank in (0, 1):  # what C++ called comes later, from Flight Recorder, and not all of it at once
            job.until(lambda rank=rank: len(gradients_of_ddp(job, rank)) == STEPS_OF_DDP)
        yield job


def rows_of(job: Job, group: str, rank: int, columns: str) -> list[list[object]]:
    return job.rows(f"SELECT {columns} FROM python.collectives WHERE \"group\" = '{group}' ORDER BY start", rank)


def gradients_of_ddp(job: Job, rank: int) -> list[list[Any]]:
    """Return a row for each step of DDP: its model fits into one bucket of 576 bytes."""
    rows = rows_of(job, job.done(0)["names"]["ddp"], rank, "op, bytes, step")
    return [row for row in rows if row[:2] == ["all_reduce", 576]]


def test_results_are_what_they_were_without_us(job: Job) -> None:
    for rank in (0, 1):
        told = job.done(rank)

        assert told["with"] == told["without"]
        assert told["ddp_with"] == told["ddp_without"]


def test_each_function_of_torch_distributed_is_seen(job: Job) -> None:
    group = job.done(0)["names"]["calls"]

    seen = {rank: rows_of(job, group, rank, "op, bytes, dtype, shape, state, seen_by") for rank in (0, 1)}

    common = [
        ["all_reduce", 44, "float32", "[11]"],
        ["broadcast", 48, "float32", "[12]"],
        ["reduce", 52, "float32", "[13]"],
        ["all_gather", 56, "float32", "[14]"],
        ["all_gather", 60, "float32", "[15]"],
        ["reduce_scatter", 128, "float32", "[32]"],
        ["reduce_scatter", 136, "float32", "[17] +1"],
        ["all_to_all", 144, "float32", "[36]"],
        ["gather", 76, "float32", "[19]"],
        ["scatter", 80, "float32", "[20]"],
        ["barrier", 0, None, None],
    ]
    for rank, mine in ((0, ["send", 84, "float32", "[21]"]), (1, ["recv", 84, "float32", "[21]"])):
        by_python = [row[:4] for row in seen[rank] if row[5] == "python"]
        assert [row for row in by_python if row in common] == common
        assert mine in by_python
        assert ["send", 88, "float32", "[22]"] in by_python
        assert ["recv", 88, "float32", "[22]"] in by_python
        assert [row[2] for row in by_python if row[0] == "all_gather"][2:] == ["int64", "uint8"]  # all_gather_object
        assert {row[4] for row in seen[rank]} == {"completed"}


@pytest.mark.parametrize("name", ["old", "calls", "async", "functional", "ddp"])
def test_numbers_are_the_same_on_both_ranks_although_sends_count_too(job: Job, name: str) -> None:
    group = job.done(0)["names"][name]

    by_rank = [rows_of(job, group, rank, "seq, op, bytes") for rank in (0, 1)]

    numbered = [sorted(row for row in rows if row[0] != -1) for rows in by_rank]
    assert numbered[0] == numbered[1]
    numbers = [row[0] for row in numbered[0]]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_waiting_for_a_late_rank_is_seen_and_a_wait_that_came_late_is_none(job: Job) -> None:
    group = job.done(0)["names"]["async"]

    first, second = rows_of(job, group, 0, "shape, duration, wait, state")

    assert first[0] == "[31]"
    assert 0.2 < first[2] <= first[1]
    assert second[:2] == ["[32]", None]
    assert second[2] < 0.05
    assert (first[3], second[3]) == ("completed", "completed")


def test_operators_come_by_in_python_and_so_does_waiting_for_their_tensors(job: Job) -> None:
    group = job.done(0)["names"]["functional"]

    rows = rows_of(job, group, 0, "op, shape, bytes, state, seen_by, wait")

    assert [row[:5] for row in rows] == [["all_reduce", "[51]", 204, "completed", "python"]] * 4
    assert rows[0][5] > 0.2  # the other rank comes 0.3 s late
    assert all(0 <= row[5] < 0.2 for row in rows[1:])


def test_calls_by_cpp_come_from_flight_recorder(job: Job) -> None:
    names = job.done(0)["names"]

    ddp = rows_of(job, names["ddp"], 0, "op, bytes, state, seen_by")

    assert all(row[2:4] == ["completed", "flight recorder"] for row in ddp)
    first, second, _ = [step for _, _, step in gradients_of_ddp(job, 0)]
    assert second == first + 1


def test_fsdp_comes_by_in_python(job: Job) -> None:
    fsdp = job.rows(
        "SELECT op, state, count(*) FROM python.collectives WHERE \"group\" = '0' AND seen_by = 'python'"
        " GROUP BY ALL ORDER BY ALL",
        0,
    )

    assert fsdp == [["all_gather", "completed", 3], ["reduce_scatter", "completed", 3]]


def test_dynamo_breaks_no_more_graphs_than_before_and_its_collectives_are_seen(job: Job) -> None:
    told = job.done(0)

    compiled = rows_of(job, told["names"]["compiled"], 0, "op, shape, seen_by")

    assert told["compiled_with"] == told["compiled_without"]
    assert sorted(compiled) == [["all_reduce", "[41]", "python"]] * 4


def test_compilations_before_and_after_the_attach_are_rows(job: Job) -> None:
    sql = "SELECT function, event, count(*) FROM torch.compile WHERE file LIKE '%collectives.py' GROUP BY ALL"

    rows = {(function, event): count for function, event, count in job.rows(sql, 0)}

    assert rows["inside", "compile"] == 2
    assert rows["breaks", "compile"] == 2
    assert rows["breaks", "graph_break"] == 2


def test_nothing_of_ours_failed(job: Job) -> None:
    assert job.rows("SELECT message FROM probe.errors") == []
