"""A job that hangs: two looks at it, and the rank it waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probe_agent.wire import TargetInfo
from probe_cli.cluster.compare.facts import Who
from probe_cli.cluster.compare.hang import LONG_START_S, Open, Progress, hang, silence_s, standstill_s

from .made import job

RANKS = [Who(rank, "node0", 1000 + rank) for rank in range(4)]
GROUP = {"0": ("default_pg", 812, "all_reduce", (0, 1, 2, 3))}


def targets(**changed: object) -> dict[Who, TargetInfo]:
    found = {}
    for who in RANKS:
        told = {"pid": who.pid, "rank": who.rank, "local_rank": who.rank, "world_size": 4, "host": who.host, "uid": 0}
        told |= {"alive": True, "state": "sleeping", "step": 7, "step_age_s": 60.0, "age_s": 600.0, "command": ()}
        told |= {"python": "3.11", "torch": "2.13", "version": "0", "how": "planned", "attached_at": 0.0, "folder": ""}
        found[who] = TargetInfo(**told)  # type: ignore[arg-type]
    for name, value in changed.items():
        who = RANKS[int(name[-1])]
        found[who] = replace(found[who], **value)  # type: ignore[arg-type]
    return found


def waiting(but: int, at: int = 812) -> dict[Who, Progress]:
    """All ranks have entered collective `at` of the group, except one."""
    behind = {"0": ("default_pg", at - 1, "all_reduce", (0, 1, 2, 3))}
    here = {"0": ("default_pg", at, "all_reduce", (0, 1, 2, 3))}
    return {who: Progress(7, 1.0, (), behind if who.rank == but else here) for who in RANKS}


@pytest.mark.parametrize(("later", "is_long"), [(1.0, False), (9.0, False), (45.0, True)])
def test_no_step_for_long_is_a_standstill(later: float, is_long: bool) -> None:
    facts = job(4, 50, hosts=2, clocks={"node1": 3600.0})
    end = float(facts[0].steps["ended"].max())

    stands_s = standstill_s(facts, end + later)

    assert (stands_s == pytest.approx(later, abs=0.01)) if is_long else stands_s is None
    assert standstill_s([replace(fact, steps={}) for fact in facts], end) is None


def test_a_job_with_long_steps_now_and_then_stands_still_only_after_longer_ones() -> None:
    facts = job(4, 50, lambda rank, step: {"other": 30.0} if step == 20 else {})
    end = float(facts[0].steps["ended"].max())

    assert standstill_s(facts, end + 45.0) is None
    assert standstill_s(facts, end + 75.0) is not None


def test_the_rank_missing_in_a_collective_is_named() -> None:
    verdict = hang(targets(), waiting(3), waiting(3), 75.0)

    assert verdict is not None
    assert (verdict.state, verdict.exit_code, verdict.ranks) == ("hangs", 7, (3,))
    assert verdict.sentence == (
        "the job hangs: no rank has ended a step for 75 s; ranks 0-2 wait in all_reduce 812 of group 0 (default_pg),"
        " which rank 3 has not reached"
    )


def test_a_rank_that_moves_between_the_looks_is_no_hang() -> None:
    after = waiting(3)
    after[RANKS[3]] = replace(after[RANKS[3]], newest_call=2.0)

    assert hang(targets(), waiting(3), after, 75.0) is None
    assert hang(targets(), waiting(3), waiting(3, at=813), 75.0) is None


def test_ended_and_stopped_ranks_are_reported_as_such() -> None:
    told = targets(
        rank3={"alive": False, "state": "gone", "ended": "was killed by SIGKILL"}, rank1={"state": "stopped"}
    )
    looks = {who: progress for who, progress in waiting(3).items() if who.rank != 3}

    verdict = hang(told, looks, looks, 75.0)

    assert verdict is not None
    assert verdict.ranks == (1, 3)
    assert "rank 1 (pid 1001 on node0) is stopped by a signal; resume it with: kill -CONT 1001" in verdict.sentence
    assert "rank 3 (pid 1003 on node0) has ended: it was killed by SIGKILL" in verdict.sentence


def test_in_a_pipeline_the_rank_that_does_not_send_is_named() -> None:
    looks = {who: Progress(7, 1.0, (Open("0", "recv", -1, 1.0, who.rank - 1),) if who.rank else ()) for who in RANKS}

    verdict = hang(targets(), looks, looks, 75.0)

    assert verdict is not None
    assert verdict.ranks == (0,)
    assert "rank 1 waits in recv from rank 0, which rank 0 has not reached" in verdict.sentence


def test_a_job_that_has_ended_does_not_hang() -> None:
    ended = {f"rank{rank}": {"alive": False, "state": "gone"} for rank in range(4)}

    assert hang(targets(**ended), waiting(3), waiting(3), 75.0) is None


@pytest.mark.parametrize(
    ("ages", "gap", "num", "is_long"),
    [
        ((60.0, 45.0, 60.0, 60.0), 0.2, 500, True),
        ((60.0, 1.0, 60.0, 60.0), 0.2, 500, False),  # one of them still calls
        ((60.0, 45.0, 60.0, 60.0), 30.0, 500, False),  # it has paused for as long before
        ((60.0, 45.0, 60.0, 60.0), 0.2, 3, False),  # it may have just begun
        ((LONG_START_S + 60.0,) * 4, 0.2, 3, True),
    ],
)
def test_without_steps_a_job_hangs_when_no_rank_calls_a_collective(
    ages: tuple[float, ...], gap: float, num: int, is_long: bool
) -> None:
    now, offset = 1_700_000_000.0, 3600.0
    looks = {who: Progress(history=(now + offset - ages[who.rank], gap, num)) for who in RANKS}

    found = silence_s(looks, dict.fromkeys(RANKS, offset), now)

    assert (found is not None) == is_long
    if is_long:
        assert found == pytest.approx(min(ages))
        verdict = hang(targets(), waiting(3), waiting(3), min(ages), has_steps=False)
        assert verdict is not None
        assert verdict.sentence.startswith("the job hangs: no rank has called a collective for ")
    assert silence_s({who: Progress() for who in RANKS}, {}, now) is None
