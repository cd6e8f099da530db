"""The ranks spend their time in collectives."""

from __future__ import annotations

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
