"""The GPU waits for Python."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps


def gpu(utilization: float, num: int = 20) -> list[dict[str, object]]:
    row = {"pid": 100, "utilization": utilization}
    return [{"ts": f"2026-01-01 00:00:{at:02}", **row} for at in range(num)]


def test_a_gpu_that_idles_without_a_wait_for_data_is_told(judged: Judged, steps: Steps) -> None:
    (found,) = judged("host-bound", {"gpu.samples": gpu(0.2), "python.steps": steps(100)})

    assert found.share == pytest.approx(0.8)
    assert any("fused" in text for text in found.advice)


def test_a_busy_gpu_and_one_that_waits_for_data_are_fine(judged: Judged, steps: Steps) -> None:
    assert judged("host-bound", {"gpu.samples": gpu(0.9), "python.steps": steps(100)}) == []
    assert judged("host-bound", {"gpu.samples": gpu(0.2), "python.steps": steps(100, data_wait=0.08)}) == []


def test_without_a_gpu_there_is_nothing_to_judge_and_few_samples_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("host-bound", {"python.steps": steps(100)})
    with pytest.raises(NoEvidence):
        judged("host-bound", {"gpu.samples": gpu(0.2, num=3), "python.steps": steps(100)})
