"""The learning rate is zero."""

from __future__ import annotations

from math import cos, pi

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged, Steps


def test_a_schedule_at_its_end_is_named_with_the_step(judged: Judged, steps: Steps) -> None:
    (found,) = judged("learning-rate-zero", {"python.steps": steps(100, lr=lambda step: 0.1 if step < 60 else 0.0)})

    assert found.since_step == 60


def test_a_small_learning_rate_is_fine(judged: Judged, steps: Steps) -> None:
    assert judged("learning-rate-zero", {"python.steps": steps(100, lr=1e-7)}) == []
    assert judged("learning-rate-zero", {"python.steps": steps(100, lr=lambda step: 0.0 if step < 60 else 0.1)}) == []


def test_one_that_has_come_down_too_fast_is_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("learning-rate-zero", {"python.steps": steps(400, lr=lambda step: 5e-4 * 0.97**step)})

    assert "from 0.0005" in found.sentence
    assert found.since_step == 152


def test_the_end_of_a_usual_schedule_is_fine(judged: Judged, steps: Steps) -> None:
    for falls in (lambda at: (1 + cos(pi * at)) / 2 + 1e-6, lambda at: 1 - at + 1e-6, lambda at: 1e-3**at):
        usual = steps(1000, lr=lambda step, falls=falls: 1e-3 * falls(step / 999))

        assert judged("learning-rate-zero", {"python.steps": usual}) == []


def test_without_one_there_is_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("learning-rate-zero", {"python.steps": steps(100)})
