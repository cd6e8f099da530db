"""The loss is NaN or infinite."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged, Steps


def test_the_first_step_is_told(judged: Judged, steps: Steps) -> None:
    bad = steps(50, loss=lambda step: float("nan") if step >= 30 else 2.0, lr=0.1)

    (found,) = judged("loss-not-finite", {"python.steps": bad})

    assert found.since_step == 30
    assert "since step 30 and still is" in found.sentence


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
