"""Checkpoints that could not be saved."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


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


def test_a_save_that_raised_is_named_with_the_last_good_one(judged: Judged) -> None:
    saves = [row(10), row(20, error="OSError: [Errno 28] No space left on device", free=0.0)]

    (found,) = judged("checkpoint-failed", {"python.checkpoints": saves})

    assert found.sentence == "1 of 2 checkpoints could not be saved: no space is left"
    assert "step 10" in found.evidence[1]
    assert found.share == 1.0


def test_one_that_was_saved_later_weighs_little(judged: Judged) -> None:
    saves = [row(10, error="RuntimeError: Parent directory does not exist"), row(20)]

    (found,) = judged("checkpoint-failed", {"python.checkpoints": saves})

    assert found.share == 0.1


def test_what_cannot_be_pickled_is_no_matter_of_the_folder(judged: Judged) -> None:
    saves = [row(10, error="AttributeError: Can't pickle local object 'Schedule.__init__.<locals>.<lambda>'")]

    (found,) = judged("checkpoint-failed", {"python.checkpoints": saves})

    assert "save states, not objects" in found.advice[0]
    assert found.try_first == "torch.save(model.state_dict(), path)"


def test_saves_without_an_error_are_fine(judged: Judged) -> None:
    assert judged("checkpoint-failed", {"python.checkpoints": [row(10), row(20)]}) == []


def test_without_a_save_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("checkpoint-failed", {})
