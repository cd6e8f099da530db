"""The data loader starts its workers anew in every epoch."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps


def job(steps: Steps, wait_s: float, persistent: bool = False) -> dict[str, list[dict[str, object]]]:
    rows = steps(
        200,
        duration=lambda step: 0.1 + (wait_s if step % 20 == 0 else 0),
        data_wait=lambda step: wait_s if step % 20 == 0 else 0.001,
    )
    loader = {"loader": "DataLoader", "place": "loader", "num_workers": 2, "persistent_workers": persistent}
    return {"python.steps": rows, "torch.dataloaders": [loader]}


def test_epochs_that_begin_with_a_wait_are_told(judged: Judged, steps: Steps) -> None:
    (found,) = judged("workers-restart", job(steps, 1.0))

    assert "starts its 2 workers anew every 20 steps" in found.sentence
    assert found.share == pytest.approx(1 / 3, abs=0.02)


def test_workers_that_start_quickly_are_fine(judged: Judged, steps: Steps) -> None:
    assert judged("workers-restart", job(steps, 0.05)) == []


def test_workers_that_stay_have_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("workers-restart", job(steps, 1.0, persistent=True))
