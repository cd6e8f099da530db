"""The first rank of a job to end, as far as the recorded ends can tell."""

from __future__ import annotations

from dataclasses import replace

from probe_agent.wire import TargetInfo
from probe_cli.cluster.ranks.ended import none_lives, one_run, told_first

ENDED = TargetInfo(
    pid=100,
    rank=0,
    local_rank=0,
    world_size=4,
    host="node1",
    uid=0,
    alive=False,
    state="gone",
    step=7,
    step_age_s=1.0,
    age_s=None,
    command=("train.py",),
    python="3.11.7",
    torch=None,
    version="0",
    how="planned",
    attached_at=1000.0,
    folder="",
    ended="was killed by SIGKILL",
    ended_badly=True,
    ended_at=2000.0,
    last_seen=1999.9,
    job="node1:29500",
)


def rank(number: int, **more: object) -> TargetInfo:
    return replace(ENDED, rank=number, pid=100 + number, **more)  # type: ignore[arg-type]


def test_the_first_is_named_with_how_it_ended_and_how_long_before_the_next() -> None:
    later = rank(1, ended="raised RuntimeError: closed", ended_at=2000.25)

    (said,) = told_first([later, rank(3)])

    assert said == (
        "rank 3 (pid 103 on node1) was the first to end: it was killed by SIGKILL at 00:33:20.000 UTC, 0.250 s before"
        " rank 1, which raised RuntimeError: closed"
    )


def test_a_rank_that_lost_its_connection_ended_after_the_one_that_was_killed() -> None:
    victim = rank(1, ended="raised RuntimeError: Connection closed by peer [127.0.0.1]:4711", ended_at=1999.98)
    other = rank(2, ended="raised ValueError: no data", ended_at=1990.0)

    (said,) = told_first([victim, rank(3)])
    (long_before,) = told_first([victim, rank(3), other])

    assert said.startswith("rank 3 (pid 103 on node1) was the first to end: it was killed by SIGKILL at 00:33:20.000")
    assert "rank 1 lost its connection, and raised RuntimeError: Connection closed by peer" in said
    assert long_before.startswith("rank 2 (pid 102 on node1) was the first to end: it raised ValueError: no data")


def test_unseen_ends_are_ordered_only_if_further_apart_than_ticks() -> None:
    unseen = rank(1, ended="ended, and nobody saw how", ended_at=None, last_seen=1999.8)

    (near,) = told_first([unseen, rank(2)])
    (far,) = told_first([replace(unseen, last_seen=1990.0), rank(2)])
    (later,) = told_first([replace(unseen, last_seen=2000.001), rank(2)])

    assert near.startswith("rank 1 (pid 101 on node1) or rank 2 ended first, at 00:33:19.800 UTC, too close to tell")
    assert far.startswith("rank 1 (pid 101 on node1) was the first to end: last seen at 00:33:10.000 UTC, 10.0 s bef")
    assert later.startswith("rank 2 (pid 102 on node1) was the first to end: it was killed by SIGKILL at 00:33:20.000")


def test_clocks_of_two_hosts_are_not_believed_to_the_millisecond() -> None:
    (said,) = told_first([rank(0), rank(1, host="node2", ended_at=2000.05)])

    assert "too close to tell" in said


def test_a_finished_job_and_a_job_of_one_have_no_first_death() -> None:
    well = {"ended": "came to its own end", "ended_badly": False}

    assert told_first([rank(0, **well), rank(1, **well)]) == []
    assert told_first([rank(0, world_size=1)]) == []


def test_two_jobs_at_one_address_each_have_their_own_first_rank() -> None:
    job = [rank(0), rank(1, ended_at=2001.0)]
    next_job = [replace(target, attached_at=3000.0, ended_at=4000.0 - (target.rank or 0)) for target in job]

    said = told_first([*job, *next_job])

    assert [sentence.split(" (")[0] for sentence in said] == ["rank 0", "rank 1"]


def test_if_no_target_is_alive_the_error_names_the_newest_jobs_first_rank() -> None:
    said = none_lives([rank(0), rank(1, ended_at=2001.0)]).message

    assert "2 ended: pid 100 (rank 0), pid 101 (rank 1); rank 0 (pid 100 on node1) was the first to end" in said


def test_of_a_job_that_was_started_twice_the_start_of_a_pid_is_meant_or_the_last_one() -> None:
    first = [rank(0), rank(1, ended_at=2001.0)]
    again = [replace(target, pid=target.pid + 100, attached_at=3000.0, ended_at=4000.0) for target in first]

    assert one_run([*again, *first], 101) == first
    assert one_run([*first, *again], 201) == again
    assert one_run([*first, *again], None) == again
    assert one_run([], 101) == []
