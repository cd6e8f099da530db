"""Checkpoints without the optimizer's state."""

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
        "path": "/data/last.pt",
        "duration": 0.5,
        "size": 100.0,
        "error": None,
    }
    at = datetime(2026, 1, 1) + timedelta(seconds=0.1 * step)
    return {"step": step, "ts": at, **usual, "free": 9_000.0, "on_training_thread": True, **others}


ADAM = [{"optimizer": "Adam", "state_memory": 80.0, "updates": 500}]
WEIGHTS = {"has_model": True, "has_optimizer": False, "has_scheduler": False, "keys": "0.weight, 0.bias"}


def test_saves_of_weights_alone_are_named(judged: Judged) -> None:
    saves = [row(step, **WEIGHTS) for step in (10, 20)]

    (found,) = judged("checkpoint-incomplete", {"python.checkpoints": saves, "torch.optimizers": ADAM})

    assert "Adam" in found.sentence


def test_whole_ones_and_an_optimizer_without_state_are_fine(judged: Judged) -> None:
    weights = [row(step, **WEIGHTS) for step in (10, 20)]
    whole = [*weights, row(20, **{**WEIGHTS, "has_optimizer": True})]
    sgd = [{**ADAM[0], "optimizer": "SGD", "state_memory": 0.0}]

    assert judged("checkpoint-incomplete", {"python.checkpoints": whole, "torch.optimizers": ADAM}) == []
    assert judged("checkpoint-incomplete", {"python.checkpoints": weights, "torch.optimizers": sgd}) == []


@pytest.mark.parametrize(
    ("path", "keys", "is_named"),
    [
        ("/data/model.pt", "0.weight, 0.bias", False),
        ("/data/checkpoints/best.pt", "0.weight, 0.bias", False),
        ("/data/checkpoints/unet.pth", "0.weight, 0.bias", True),
        ("/data/step200.pt", "0.weight, 0.bias", True),
        ("/data/model.pt", "state_dict", False),
        ("/data/model.pt", "model, step", True),
    ],
)
def test_a_model_that_is_handed_on_is_told_from_a_checkpoint(
    judged: Judged, path: str, keys: str, is_named: bool
) -> None:
    saves = [row(step, path=path, **{**WEIGHTS, "keys": keys}) for step in (10, 20)]
    tables = {"python.checkpoints": saves, "torch.optimizers": ADAM}

    if is_named:
        assert judged("checkpoint-incomplete", tables)
    else:
        with pytest.raises(NotApplicable):
            judged("checkpoint-incomplete", tables)


def test_copies_in_memory_are_no_checkpoints(judged: Judged) -> None:
    copies = [row(step, path=None, **WEIGHTS) for step in (10, 20)]

    with pytest.raises(NotApplicable):
        judged("checkpoint-incomplete", {"python.checkpoints": copies, "torch.optimizers": ADAM})


def test_one_save_is_not_judged(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("checkpoint-incomplete", {"python.checkpoints": [row(10, **WEIGHTS)], "torch.optimizers": ADAM})
