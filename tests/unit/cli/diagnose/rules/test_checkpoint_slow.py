"""Checkpoints that stop the training."""

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


def test_saves_that_take_long_are_named_with_their_speed(judged: Judged, steps: Steps) -> None:
    saves = [row(step) for step in (20, 40, 60, 80)]

    (found,) = judged("checkpoint-slow", {"python.steps": steps(100), "python.checkpoints": saves})

    assert found.share == pytest.approx(0.2)
    assert "at 200 MiB a second" in found.evidence[0]


def test_short_ones_and_those_of_another_thread_are_fine(judged: Judged, steps: Steps) -> None:
    for healthy in ({"duration": 0.01}, {"on_training_thread": False}):
        saves = [row(step, **healthy) for step in (20, 40, 60, 80)]
        try:
            assert judged("checkpoint-slow", {"python.steps": steps(100), "python.checkpoints": saves}) == []
        except NotApplicable:
            assert "on_training_thread" in healthy


def test_without_a_save_there_is_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("checkpoint-slow", {"python.steps": steps(100)})
