"""One rank saves, the others wait."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps, Tables


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


def waiting(steps: Steps, wait: float) -> Tables:
    calls = [{"step": step, "op": "all_reduce", "wait": wait} for step in (20, 40, 60, 80)]
    return {"python.steps": steps(100), "python.collectives": calls}


def saving(steps: Steps, **others: Any) -> Tables:
    return {"python.steps": steps(100), "python.checkpoints": [row(step, **others) for step in (20, 40, 60, 80)]}


def test_the_rank_that_saves_while_the_others_wait_is_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("checkpoint-one-rank", saving(steps), waiting(steps, 0.5), waiting(steps, 0.5))

    assert found.ranks == (0,)
    assert "2 ranks" in found.sentence


def test_a_checkpoint_that_goes_to_an_open_file_has_no_path(judged: Judged, steps: Steps) -> None:
    tables = saving(steps, path=None, size=None, free=None)

    (found,) = judged("checkpoint-one-rank", tables, waiting(steps, 0.5), waiting(steps, 0.5))

    assert found.evidence[0].endswith(" to an object without a path")


def test_ranks_that_do_not_wait_or_save_as_well_are_fine(judged: Judged, steps: Steps) -> None:
    assert judged("checkpoint-one-rank", saving(steps), waiting(steps, 0.001)) == []
    assert judged("checkpoint-one-rank", saving(steps), saving(steps)) == []


def test_one_rank_or_no_save_is_not_judged(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("checkpoint-one-rank", saving(steps))
    with pytest.raises(NotApplicable):
        judged("checkpoint-one-rank", waiting(steps, 0.1), waiting(steps, 0.1))
