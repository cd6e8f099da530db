"""The verdict on a job, from two looks at its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from probe_agent.wire import Backtrace, Frame, TargetInfo, ThreadStack
from probe_cli.cluster.hang.looks import Look, Pace
from probe_cli.cluster.hang.verdict import State, Verdict, judge

RANKS = (0, 1, 2, 3)
GROUPS = {"0": ("default_pg", RANKS)}


def target(rank: int, **more: object) -> TargetInfo:
    made = TargetInfo(
        100 + rank, rank, rank, 4, "node1", 0, True, "sleeping", 20, 30.0, 60.0, ("train.py",), "3.11", "2.13", "0.1",
        "planned", 0.0, "/dev/shm/x",
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]  # fields of TargetInfo


def at(line: str, func: str = "train") -> Backtrace:
    frame = Frame(func, "/home/me/train.py", 88, 0, "python", line)
    return Backtrace((ThreadStack("MainThread", 1, 1, True, True, False, (frame,)),), "outside", ())


def rank_look(seq: int, waits: bool, stood_s: float, stacks: Backtrace) -> Look:
    """A rank that has come to call `seq`, and has not got on for `stood_s`."""
    call = ("0", "all_reduce", seq, stood_s, "scheduled", "[4]", "float32", 16, 1800.0, False)
    return Look(
        20,
        Pace(stood_s, 0.1, 0.3, 20),
        None,
        1_000_000.0,
        stood_s,
        60,
        GROUPS,
        {"0": seq},
        (),
        (call,) if waits else (),
        stacks,
    )


def looks(stood_s: float, culprit: int | None, line: str = "x.backward()", func: str = "train") -> dict[int, Look]:
    return {
        rank: rank_look(40, False, stood_s, at(line, func))
        if rank == culprit
        else rank_look(41, True, stood_s, at("dist.all_reduce(x)"))
        for rank in RANKS
    }


def verdict(before: Mapping[int, Look], after: Mapping[int, Look], **targets: TargetInfo) -> Verdict:
    known = {rank: targets.get(f"rank{rank}", target(rank)) for rank in RANKS}
    return judge(known, before, after, between_s=2.0, missing=len(set(RANKS) - set(after)))


def test_the_rank_that_has_not_come_is_named_with_what_it_does() -> None:
    seen = looks(60.0, 2, "time.sleep(3600)")

    said = verdict(seen, seen)

    assert (said.state, said.ranks, said.cause) == (State.HANGS, (2,), "absent")
    assert "rank 2 has not come to all_reduce 41 of group default_pg (0)" in said.sentence
    assert "rank 2 sleeps in train (train.py:88)" in said.sentence
    assert said.aborts_in_s == pytest.approx(1740.0)


@pytest.mark.parametrize("stood_s", [0.5, 5.0])
def test_a_moment_is_no_hang(stood_s: float) -> None:
    seen = looks(stood_s, 2)

    assert verdict(seen, seen).state is State.NONE


def test_a_step_between_the_looks_is_no_hang() -> None:
    before = looks(60.0, 2)
    after = {rank: replace(seen, step=21) for rank, seen in before.items()}

    said = verdict(before, after)

    assert (said.state, said.ranks) == (State.NONE, ())
    assert "from step 20 to 21" in said.sentence


@pytest.mark.parametrize(("stood_s", "state"), [(60.0, State.SLOW), (200.0, State.HANGS)])
def test_a_rank_that_works_is_given_time(stood_s: float, state: State) -> None:
    before, after = looks(stood_s, 2), looks(stood_s, 2, func="evaluate")

    assert verdict(before, after).state is state


def test_a_stopped_rank_is_the_cause_wherever_it_is() -> None:
    seen = looks(60.0, None)

    said = verdict(seen, seen, rank1=target(1, state="stopped"))

    assert (said.state, said.ranks) == (State.HANGS, (1,))
    assert "kill -CONT 101" in said.sentence


def test_a_rank_that_has_ended_is_the_cause() -> None:
    seen = looks(60.0, None)

    said = verdict(seen, seen, rank3=target(3, alive=False, ended="was killed by SIGKILL"))

    assert (said.state, said.ranks) == (State.HANGS, (3,))
    assert "it was killed by SIGKILL" in said.sentence


def test_ranks_of_which_nothing_is_known_are_not_blamed_with_certainty() -> None:
    seen = {rank: look for rank, look in looks(60.0, None).items() if rank != 1}

    said = verdict(seen, seen)

    assert said.state is State.UNKNOWN
    assert "nothing is known of rank 1" in said.sentence


def test_without_a_step_or_a_call_nobody_says_how_long_is_long() -> None:
    nothing = {"steps": None, "step": None, "newest_call": None, "newest_call_age": None}
    blind = {rank: replace(seen, **nothing) for rank, seen in looks(60.0, 2).items()}  # type: ignore[arg-type]

    assert verdict(blind, blind).state is State.UNKNOWN


@pytest.mark.parametrize(
    ("ages", "gap", "num", "state"),
    [
        ((60.0, 45.0, 60.0, 60.0), 0.2, 500, State.HANGS),
        ((60.0, 1.0, 60.0, 60.0), 0.2, 500, State.NONE),  # one of them still calls
        ((60.0, 45.0, 60.0, 60.0), 30.0, 500, State.NONE),  # it has paused for as long before
        ((60.0, 45.0, 60.0, 60.0), 0.2, 3, State.NONE),  # it may have just begun
        ((360.0,) * 4, 0.2, 3, State.HANGS),
    ],
)
def test_without_steps_flight_recorder_tells_how_long_the_job_usually_takes(
    ages: tuple[float, ...], gap: float, num: int, state: State
) -> None:
    seen = {
        rank: replace(
            look, steps=None, step=None, newest_call=None, newest_call_age=None, calls=Pace(ages[rank], 0.0, gap, num)
        )
        for rank, look in looks(60.0, 2, "time.sleep(60)").items()
    }

    assert verdict(seen, seen).state is state


def test_in_a_pipeline_the_rank_that_does_not_send_is_named() -> None:
    seen = {
        rank: replace(
            rank_look(0, False, 60.0, at("dist.recv(x, rank - 1)")),
            open_calls=(("0", "recv", -1, 60.0, rank - 1),) if rank else (),
        )
        for rank in RANKS
    }

    said = verdict(seen, seen)

    assert (said.state, said.ranks, said.cause) == (State.HANGS, (0,), "no peer")
    assert "rank 0 has not called the send that answers rank 1's recv from rank 0" in said.sentence


def test_a_job_that_has_ended_does_not_hang() -> None:
    ended = {f"rank{rank}": target(rank, alive=False, state="gone", ended="exited") for rank in RANKS}
    seen = looks(60.0, 2)

    assert verdict(seen, seen, **ended).state is State.NONE


def test_ended_and_stopped_ranks_are_reported_together() -> None:
    seen = looks(60.0, None)

    said = verdict(
        seen, seen, rank3=target(3, alive=False, ended="was killed by SIGKILL"), rank1=target(1, state="stopped")
    )

    assert said.ranks == (1, 3)
    assert "rank 1 (pid 101 on node1) is stopped by a signal; resume it with: kill -CONT 101" in said.sentence
    assert "rank 3 (pid 103 on node1) has ended: it was killed by SIGKILL" in said.sentence
