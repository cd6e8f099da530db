"""The loss is NaN or infinite."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged, Steps


def test_the_first_step_is_told(judged: Judged, steps: Steps) -> None:
    bad = steps(50, loss=lambda step: float("nan") if step >= 30 else 2.0, lr=0.1)

    (found,) = judged("loss-not-finite", {"python.steps": bad})

    assert found.since_step == 30
    assert found.sentence.endswith("since step 30 and still is")


def test_a_loss_that_grew_until_it_overflowed_is_told_with_its_learning_rate(judged: Judged, steps: Steps) -> None:
    grew = steps(50, loss=lambda step: 2.0 * 10.0**step if step < 38 else float("inf"), lr=20.0)

    (found,) = judged("loss-not-finite", {"python.steps": grew})

    assert "it grew to 2e+37 before, at learning rate 20" in found.sentence
    assert found.advice[0].startswith("lower the learning rate")


def test_a_finite_loss_is_fine(judged: Judged, steps: Steps) -> None:
    assert judged("loss-not-finite", {"python.steps": steps(50, loss=2.0)}) == []


def test_one_that_the_scaler_skipped_is_how_the_scale_is_found(judged: Judged, steps: Steps) -> None:
    def rows(skipped: bool) -> list[dict[str, object]]:
        return steps(200, loss=lambda step: float("inf") if step == 90 else 2.0, skipped=lambda step: skipped)

    assert judged("loss-not-finite", {"python.steps": rows(skipped=True)}) == []
    assert judged("loss-not-finite", {"python.steps": rows(skipped=False)})


def test_without_a_loss_there_is_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("loss-not-finite", {"python.steps": steps(50)})
