"""The GPU waits for Python."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps

NUM_STEPS = 250
START = datetime(2026, 1, 1)


def gpu(utilization: float, num: int = 24, from_s: int = 0) -> list[dict[str, object]]:
    """Rows of `gpu.samples`, one a second; steps of 0.1 s begin at second 0."""
    row = {"pid": 100, "utilization": utilization}
    return [{"ts": START + timedelta(seconds=from_s + at), **row} for at in range(num)]


def test_a_gpu_that_idles_without_a_wait_for_data_is_told(judged: Judged, steps: Steps) -> None:
    (found,) = judged("host-bound", {"gpu.samples": gpu(0.2), "python.steps": steps(NUM_STEPS)})

    assert found.share == pytest.approx(0.8)
    assert any("fused" in text for text in found.advice)


def test_a_busy_gpu_and_one_that_waits_for_data_are_fine(judged: Judged, steps: Steps) -> None:
    assert judged("host-bound", {"gpu.samples": gpu(0.9), "python.steps": steps(NUM_STEPS)}) == []
    assert judged("host-bound", {"gpu.samples": gpu(0.2), "python.steps": steps(NUM_STEPS, data_wait=0.08)}) == []


def test_without_a_gpu_there_is_nothing_to_judge_and_few_samples_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("host-bound", {"python.steps": steps(NUM_STEPS)})
    with pytest.raises(NoEvidence):
        judged("host-bound", {"gpu.samples": gpu(0.2, num=3), "python.steps": steps(NUM_STEPS)})


def test_what_the_gpu_did_before_the_steps_is_not_theirs(judged: Judged, steps: Steps) -> None:
    """A GPT that kept an H200 busy for 99 % of the time was once said to be limited by the host."""
    samples = [*gpu(0.0, num=120, from_s=-120), *gpu(0.99)]

    assert judged("host-bound", {"gpu.samples": samples, "python.steps": steps(NUM_STEPS)}) == []
