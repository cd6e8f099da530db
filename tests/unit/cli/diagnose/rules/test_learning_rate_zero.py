"""The learning rate is zero."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged, Steps


def test_a_schedule_at_its_end_is_named_with_the_step(judged: Judged, steps: Steps) -> None:
    (found,) = judged("learning-rate-zero", {"python.steps": steps(100, lr=lambda step: 0.1 if step < 60 else 0.0)})

    assert found.since_step == 60


def test_a_small_learning_rate_is_fine(judged: Judged, steps: Steps) -> None:
    assert judged("learning-rate-zero", {"python.steps": steps(100, lr=1e-7)}) == []
    assert judged("learning-rate-zero", {"python.steps": steps(100, lr=lambda step: 0.0 if step < 60 else 0.1)}) == []


def test_without_one_there_is_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("learning-rate-zero", {"python.steps": steps(100)})
