"""GradScaler skips the optimizer again and again."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged, Steps


def test_every_second_step_skipped_is_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("scaler-skips", {"python.steps": steps(100, skipped=lambda step: step % 2 == 0)})

    assert found.share == pytest.approx(0.5)


def test_a_skip_now_and_then_is_how_a_scale_is_found(judged: Judged, steps: Steps) -> None:
    assert judged("scaler-skips", {"python.steps": steps(100, skipped=lambda step: step in (3, 70))}) == []


def test_few_steps_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("scaler-skips", {"python.steps": steps(10, skipped=True)})
