"""Optimizers that begin anew after a load."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from probe_cli.diagnose.finding import Certainty, NotApplicable

from .conftest import Judged, Steps


def rows_of(steps: Steps, *, updates: int | None, at: int = 500, num: int = 700, saved: int = 500) -> dict[str, Any]:
    """A checkpoint of `saved` updates that is loaded at step `at` of `num`."""
    course = steps(num)
    ts = course[at]["ts"] if at else course[0]["ts"] - timedelta(seconds=9)
    assert isinstance(ts, datetime)
    load = {"kind": "load", "function": "torch.load", "path": "/data/last.pt", "step": at, "ts": ts}
    load |= {"has_optimizer": True, "has_model": True, "updates": saved, "error": None, "on_training_thread": True}
    return {
        "python.steps": course,
        "python.checkpoints": [load],
        "torch.parameters": [{"parameter": "weight", "parameters": 8, "updates": updates}],
    }


def test_an_optimizer_that_counts_from_the_load_on_is_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("optimizer-not-restored", rows_of(steps, updates=199))

    assert "counts 199 updates, the checkpoint it was to go on from 500" in found.sentence
    assert found.certainty is Certainty.LIKELY
    assert found.where == "/data/last.pt"


def test_weights_alone_may_be_wanted_at_the_start(judged: Judged, steps: Steps) -> None:
    (found,) = judged("optimizer-not-restored", rows_of(steps, updates=300, at=0, num=300))

    assert found.certainty is Certainty.POSSIBLE


def test_one_that_goes_on_is_fine(judged: Judged, steps: Steps) -> None:
    assert judged("optimizer-not-restored", rows_of(steps, updates=699)) == []
    assert judged("optimizer-not-restored", rows_of(steps, updates=199, saved=20)) == []


def test_without_a_load_a_count_or_steps_there_is_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    for rows in (
        {"python.steps": steps(50)},
        rows_of(steps, updates=None),
        rows_of(steps, updates=5, num=505),
    ):
        with pytest.raises(NotApplicable):
            judged("optimizer-not-restored", rows)
