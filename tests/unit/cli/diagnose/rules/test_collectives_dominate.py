"""The ranks spend their time in collectives."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps


def calls(wait: float, op: str = "all_reduce") -> list[dict[str, object]]:
    return [{"step": step, "ts": "2026-01-01", "op": op, "wait": wait, "bytes": 2**20} for step in range(100)]


def test_ranks_that_all_wait_are_named(judged: Judged, steps: Steps) -> None:
    both = {"python.steps": steps(100), "python.collectives": calls(0.05)}

    (found,) = judged("collectives-dominate", both, {**both, "python.collectives": calls(0.06)})

    assert found.share == pytest.approx(0.5)
    assert found.ranks == (0, 1)


@pytest.mark.parametrize(("delay", "is_told"), [(0.2, True), (0.4, False), (None, False)])
def test_on_a_busy_host_what_the_other_rank_waits_for_a_core_is_not_told(
    judged: Judged, steps: Steps, delay: float | None, is_told: bool
) -> None:
    both = {
        "python.steps": steps(100),
        "python.collectives": calls(0.06),
        "host.pressure": [{"scope": "host", "ts": "2026-01-01 00:00:05", "cpu_some": 0.97}],
        "process.samples": [{"ts": "2026-01-01", "period": 1.0, "run_delay": delay}],
    }

    if is_told:
        assert [one.share for one in judged("collectives-dominate", both, both)] == [pytest.approx(0.6)]
    else:
        with pytest.raises(NoEvidence, match="wait for a core all the time"):
            judged("collectives-dominate", both, both)


@pytest.mark.parametrize(("num", "size", "is_told"), [(30, 8, True), (30, 2**20, False), (3, 8, False)])
def test_many_calls_of_a_few_numbers_are_told(judged: Judged, steps: Steps, num: int, size: int, is_told: bool) -> None:
    each = [{**one, "wait": 0.06 / num, "bytes": size} for one in calls(0.0) for _ in range(num)]
    both = {"python.steps": steps(100), "python.collectives": each}

    (found,) = judged("collectives-dominate", both, both)

    assert ("in 30 calls a step, most of them of a few numbers" in found.sentence) is is_told
    assert ("one tensor" in found.advice[1]) is is_told


def of_reducer(before_end: float) -> list[dict[str, object]]:
    """Two calls of C++ in each backward, the last one so long before the end of it."""
    ends = [datetime(2026, 1, 1) + timedelta(seconds=0.1 * step - 0.02) for step in range(80)]  # newer ones come later
    call = {"op": "all_reduce", "phase": "backward", "seen_by": "flight recorder", "bytes": 2**20}
    return [
        {**call, "step": step, "start": end - timedelta(seconds=before_end + earlier)}
        for step, end in enumerate(ends)
        for earlier in (0.0, 0.01)
    ]


@pytest.mark.parametrize(("before_end", "share"), [(0.04, 0.4), (0.02, None), (-0.01, None), (0.5, 0.5)])
def test_the_reducer_waits_from_its_last_call_to_the_end_of_backward(
    judged: Judged, steps: Steps, before_end: float, share: float | None
) -> None:
    both = {"python.steps": steps(100, optimizer=0.015, other=0.005), "python.collectives": of_reducer(before_end)}

    found = judged("collectives-dominate", both, both)

    assert [one.share for one in found] == ([] if share is None else [pytest.approx(share)])  # never more than backward


@pytest.mark.parametrize(("micro_batches", "is_told"), [(2, True), (4, False), (1, False)])
def test_micro_batches_that_each_exchange_their_gradients_are_told(
    judged: Judged, steps: Steps, micro_batches: int, is_told: bool
) -> None:
    of_steps = steps(100, optimizer=0.015, other=0.005, micro_batches=micro_batches)
    both = {"python.steps": of_steps, "python.collectives": of_reducer(0.04)}  # one bucket, two calls a step

    (found,) = judged("collectives-dominate", both, both)

    assert ("no_sync" in found.advice[0] and "each of 2 micro-batches" in found.sentence) is is_told
    assert found.share == pytest.approx(0.5 if is_told else 0.4)  # twice as much, but never more than backward


def test_what_no_sync_would_save_is_told_where_it_is_little(judged: Judged, steps: Steps) -> None:
    def job(micro_batches: int) -> dict[str, list[dict[str, object]]]:
        of_steps = steps(100, optimizer=0.015, other=0.005, micro_batches=micro_batches)
        return {"python.steps": of_steps, "python.collectives": of_reducer(0.008)}

    (found,) = judged("collectives-dominate", job(2), job(2))

    assert found.share == pytest.approx(0.16)
    assert judged("collectives-dominate", job(1), job(1)) == []


def test_a_job_that_called_only_at_its_start_is_judged(judged: Judged, steps: Steps) -> None:
    both = {"python.steps": steps(1_000), "python.collectives": of_reducer(0.04)[:2]}

    assert judged("collectives-dominate", both, both) == []


def test_a_pipeline_that_is_not_filled_is_told_from_collectives(judged: Judged, steps: Steps) -> None:
    both = {"python.steps": steps(100), "python.collectives": calls(0.05, "recv")}

    (found,) = judged("collectives-dominate", both, both)

    assert found.sentence == "every rank waits for its neighbours in the pipeline at least 50 % of the time"
    assert found.advice[0].startswith("fill the pipeline")


def test_a_ring_is_told_from_a_pipeline(judged: Judged, steps: Steps) -> None:
    def rank(at: int) -> dict[str, list[dict[str, object]]]:
        sent = [{**call, "op": "send", "wait": 0.0, "peer": (at + 1) % 3} for call in calls(0.05)]
        received = [{**call, "op": "recv", "peer": (at - 1) % 3} for call in calls(0.05)]
        return {"python.steps": steps(100), "python.collectives": sent + received}

    (found,) = judged("collectives-dominate", *map(rank, range(3)))

    assert found.sentence == "every rank waits for its neighbours in the ring at least 50 % of the time"
    assert found.advice[0].startswith("send and receive the next block before")


def test_a_rank_that_does_not_wait_is_what_the_others_wait_for(judged: Judged, steps: Steps) -> None:
    waits = {"python.steps": steps(100), "python.collectives": calls(0.06)}

    assert judged("collectives-dominate", waits, {**waits, "python.collectives": calls(0.0)}) == []


def test_one_rank_has_none_and_no_steps_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("collectives-dominate", {"python.steps": steps(100)})
    with pytest.raises(NoEvidence):
        judged("collectives-dominate", {}, {})
