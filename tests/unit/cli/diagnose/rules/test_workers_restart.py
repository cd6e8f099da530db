"""The data loader starts its workers anew in every epoch, or in every step."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps


def job(steps: Steps, wait_s: float, every: int = 20, num_workers: int = 2) -> dict[str, list[dict[str, object]]]:
    rows = steps(
        200,
        duration=lambda step: 0.1 + (wait_s if step % every == 0 else 0),
        data_wait=lambda step: wait_s if step % every == 0 else 0.001,
        workers_started=lambda step: num_workers if step % every == 0 else 0,
    )
    return {"python.steps": rows}


def test_epochs_that_begin_with_a_wait_are_told(judged: Judged, steps: Steps) -> None:
    (found,) = judged("workers-restart", job(steps, 1.0))

    assert "starts its 2 workers anew every 20 steps" in found.sentence
    assert found.share == pytest.approx(1 / 3, abs=0.02)


def test_a_loader_that_is_made_in_each_step_is_told(judged: Judged, steps: Steps) -> None:
    (found,) = judged("workers-restart", job(steps, 0.2, every=1))

    assert "anew in each step" in found.sentence
    assert "once, before the loop" in found.advice[0]


def test_workers_that_start_quickly_are_fine(judged: Judged, steps: Steps) -> None:
    assert judged("workers-restart", job(steps, 0.05)) == []


def test_workers_that_stay_have_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("workers-restart", job(steps, 1.0, num_workers=0))
