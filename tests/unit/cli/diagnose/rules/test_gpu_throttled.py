"""A GPU of the job runs below its clock."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged


def gpu(clock: float, throttle: str | None, num: int = 10, limit: float = 700.0) -> dict[str, list[dict[str, object]]]:
    row = {
        "pid": 100, "device": "cuda:0", "name": "H100", "utilization": 0.9, "sm_clock": clock, "sm_clock_max": 1980.0,
        "throttle": throttle, "temperature": 88.0, "power": 350.0, "power_limit": limit,
        "power_default": 700.0,
    }  # fmt: skip
    return {"gpu.samples": [{"ts": f"2026-01-01 00:00:{at:02}", **row} for at in range(num)]}


def test_the_reason_and_what_is_lost_are_told(judged: Judged) -> None:
    (found,) = judged("gpu-throttled", gpu(990.0, "thermal"))

    assert "thermal" in found.sentence
    assert found.share == 0.5


def test_a_full_clock_and_one_that_is_low_for_lack_of_work_are_fine(judged: Judged) -> None:
    assert judged("gpu-throttled", gpu(1900.0, "power cap")) == []
    assert judged("gpu-throttled", gpu(600.0, "idle")) == []


def test_a_power_cap_is_told_where_somebody_has_lowered_it(judged: Judged) -> None:
    """Under full load an H200 holds its clocks back at the 700 W that it comes with."""
    assert judged("gpu-throttled", gpu(1400.0, "power cap")) == []
    (found,) = judged("gpu-throttled", gpu(1400.0, "power cap", limit=400.0))
    assert "power cap" in found.sentence
    assert judged("gpu-throttled", gpu(1400.0, "power cap, thermal (hardware)"))


def test_without_a_gpu_there_is_nothing_to_judge_and_few_samples_are_no_evidence(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("gpu-throttled", {})
    with pytest.raises(NoEvidence):
        judged("gpu-throttled", gpu(990.0, "thermal", num=2))
