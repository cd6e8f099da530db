"""Resumes that did not go on where the job had stopped."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps


def row(step: int, **others: Any) -> dict[str, Any]:
    """A call at a step, half a second long."""
    usual = {
        "kind": "save",
        "function": "torch.save",
        "path": "/data/a.pt",
        "duration": 0.5,
        "size": 100.0,
        "error": None,
    }
    at = datetime(2026, 1, 1) + timedelta(seconds=0.1 * step)
    return {"step": step, "ts": at, **usual, "free": 9_000.0, "on_training_thread": True, **others}


def load(**others: Any) -> list[dict[str, Any]]:
    saved = {"has_optimizer": True, "has_model": True, "saved_step": 500, "lr": 1e-3, "loss": 0.5, "updates": 500}
    return [row(-1, kind="load", function="torch.load", **{**saved, **others})]


def test_another_learning_rate_loss_and_count_are_named(judged: Judged, steps: Steps) -> None:
    rows = steps(30, lr=0.1, loss=2.0, counted=True)

    (found,) = judged("resume-changed", {"python.steps": rows, "python.checkpoints": load()})

    assert found.sentence == "the resume changed the learning rate and the loss and the optimizer's state"


def test_a_job_that_goes_on_is_fine(judged: Judged, steps: Steps) -> None:
    rows = [{**one, "step": one["step"] + 500} for one in steps(30, lr=1e-3, loss=0.52, counted=True)]

    assert judged("resume-changed", {"python.steps": rows, "python.checkpoints": load()}) == []


def test_without_a_load_or_steps_there_is_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("resume-changed", {"python.steps": steps(30)})
    with pytest.raises(NotApplicable):
        judged("resume-changed", {"python.steps": steps(3, lr=0.1), "python.checkpoints": load()})
