"""Targets that are ranks of one job, and the message if several jobs match."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probe_agent.errors import BadRequest
from probe_agent.wire import TargetInfo
from probe_cli.cluster.ranks import listing
from probe_cli.cluster.ranks.jobs import NoSuchJob, in_job, jobs_of, one_job
from probe_cli.endpoint import Endpoint, LocalProcess, TcpServer, TlsServer

RANK = TargetInfo(
    pid=100, rank=0, local_rank=0, world_size=2, host="node1", uid=0, alive=True, state="running", step=7,
    step_age_s=0.1, age_s=9.0, command=("python", "train.py"), python="3.11.7", torch="2.13.0", version="0.1.0",
    how="planned", attached_at=0.0, folder="/nowhere", job="kfmcga", store="node1:29500",
)  # fmt: skip
ALONE = replace(RANK, world_size=1, store="")
HERE = TcpServer("node1", 8080)


def rank(number: int, **more: object) -> TargetInfo:
    return replace(RANK, rank=number, pid=100 + number, **more)  # type: ignore[arg-type]


def grouped(*targets: TargetInfo) -> list[list[int]]:
    return sorted([target.pid for target in job] for job in jobs_of(targets))


def test_ranks_are_of_one_job_by_its_name_on_whatever_host() -> None:
    elsewhere = rank(1, host="node2", store="10.0.0.1:29500")

    assert grouped(RANK, elsewhere) == [[100, 101]]
    assert grouped(RANK, rank(1, job="tovika")) == [[100], [101]]


def test_one_that_does_not_know_its_job_yet_belongs_to_those_that_meet_where_it_does() -> None:
    assert grouped(RANK, rank(1, job="")) == [[100, 101]]
    assert grouped(RANK, rank(1, job="", store="node1:29501")) == [[100], [101]]
    assert grouped(rank(0, job="", store=""), rank(1, job="", store="")) == [[100, 101]]


def test_one_that_has_ended_is_not_taken_for_a_rank_of_the_job_that_meets_there_now() -> None:
    assert grouped(RANK, rank(1, job="", alive=False)) == [[100], [101]]


def test_children_without_a_rank_are_no_job() -> None:
    assert grouped(RANK, replace(RANK, rank=None, world_size=1, job="", pid=7)) == [[100]]


@pytest.mark.parametrize("at", [HERE, TlsServer("node1", 8080)])
def test_a_question_to_several_jobs_lists_them_with_what_to_type(at: Endpoint) -> None:
    with pytest.raises(BadRequest) as asked:
        one_job([RANK, rank(1), rank(0, job="tovika", step=None)], [at])

    assert "2 jobs at" in asked.value.message
    assert "\n  kfmcga  ranks 0-1 of 2, step 7, python train.py" in asked.value.message
    assert "\n  tovika  rank 0 of 2, no step yet, python train.py" in asked.value.message
    assert asked.value.hint == f"name one: --job kfmcga, or the endpoint {at}/kfmcga"


def test_single_processes_may_be_named_one_by_one() -> None:
    both = [ALONE, replace(ALONE, job="tovika", pid=101)]

    one_job(both, [LocalProcess(100), LocalProcess(101)])
    with pytest.raises(BadRequest):
        one_job(both, [HERE])
    with pytest.raises(BadRequest):
        one_job([RANK, rank(0, job="tovika")], [LocalProcess(100), LocalProcess(101)])


def test_a_rank_that_has_left_its_job_may_be_named_with_the_others() -> None:
    left = rank(1, job="", store="")

    one_job([RANK, left], [LocalProcess(100), LocalProcess(101)])
    with pytest.raises(BadRequest):
        one_job([RANK, left], [HERE])
    with pytest.raises(BadRequest):
        one_job([RANK, replace(left, rank=0)], [LocalProcess(100), LocalProcess(101)])


def test_the_beginning_of_a_name_is_enough_and_the_living_come_first() -> None:
    living, ended, other = RANK, rank(1, job="kftttt", alive=False), rank(0, job="kmmmmm")

    assert in_job([living, ended, other], "kf", HERE) == (living,)
    assert in_job([living, ended, other], "kft", HERE) == (ended,)
    with pytest.raises(BadRequest, match="2 jobs begin with k: kfmcga, kmmmmm"):
        in_job([living, ended, other], "k", HERE)
    with pytest.raises(NoSuchJob):
        in_job([living, ended, other], "z", HERE)


def test_a_rank_of_a_job_that_was_named_keeps_its_name_since_another_job_may_begin_there() -> None:
    (unnamed,) = listing._behind(HERE, [RANK])
    (named,) = listing._behind(replace(HERE, job="kfm"), [RANK], keep_job=True)

    assert str(unnamed.endpoint) == "node1:8080/0"
    assert str(named.endpoint) == "node1:8080/kfmcga/0"
