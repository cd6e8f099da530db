"""Space for the next checkpoints."""

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


def test_a_disk_that_is_nearly_full_is_named(judged: Judged) -> None:
    saves = [row(10, free=250.0), row(20, path="/data/b.pt", free=150.0)]

    (found,) = judged("checkpoint-space", {"python.checkpoints": saves})

    assert found.sentence.startswith("there is space for 1.5 more checkpoints")


def test_a_disk_with_room_is_fine(judged: Judged) -> None:
    assert judged("checkpoint-space", {"python.checkpoints": [row(10)]}) == []


def test_without_a_file_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("checkpoint-space", {"python.checkpoints": [row(10, size=None)]})
