"""A device runs out of memory."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def sample(retries: int, ooms: int, inactive: float = 10.0) -> dict[str, object]:
    return {"step": 5, "ts": "2026-01-01", "device": "cuda:0", "allocated": 900.0, "peak_allocated": 990.0,
            "reserved": 1000.0, "inactive": inactive, "retries": retries, "ooms": ooms}  # fmt: skip


def test_retries_and_errors_are_named_and_fragmentation_changes_the_advice(judged: Judged) -> None:
    (retries,) = judged("device-out-of-memory", {"torch.memory": [sample(0, 0), sample(7, 0)]})
    (errors,) = judged("device-out-of-memory", {"torch.memory": [sample(7, 1, inactive=400.0)]})

    assert "7 retries" in retries.sentence
    assert "1 out-of-memory errors" in errors.sentence
    assert "expandable_segments" in errors.advice[0]
    assert "expandable_segments" not in retries.advice[0]


def test_a_device_with_room_is_fine(judged: Judged) -> None:
    assert judged("device-out-of-memory", {"torch.memory": [sample(0, 0)]}) == []


def test_a_job_on_the_processor_has_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("device-out-of-memory", {})
