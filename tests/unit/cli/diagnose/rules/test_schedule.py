"""Schedules that are not stepped, or too often."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps


def schedule(**others: Any) -> list[dict[str, Any]]:
    usual = {"scheduler": "OneCycleLR", "calls": 500, "updates": 500, "steps_seen": 400, "lr": 0.1, "base_lr": 0.1}
    return [{**usual, **others}]


def test_one_that_is_never_stepped_is_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("schedule", {"python.steps": steps(50), "torch.schedulers": schedule(calls=0)})

    assert "never called" in found.sentence


def test_one_for_each_epoch_is_named_after_an_epoch_only(judged: Judged, steps: Steps) -> None:
    def found(batches: int) -> int:
        rows = schedule(scheduler="StepLR", calls=0, batches=batches)
        return len(judged("schedule", {"python.steps": steps(50, micro_batches=1), "torch.schedulers": rows}))

    assert (found(399), found(100)) == (0, 1)


def test_a_long_one_that_is_stepped_once_an_epoch_is_named(judged: Judged, steps: Steps) -> None:
    def found(**others: Any) -> list[str]:
        rows = schedule(**{"calls": 2, "updates": 1_000, "total": 7_500.0, **others})
        return [one.sentence for one in judged("schedule", {"python.steps": steps(50), "torch.schedulers": rows})]

    assert found() == [
        "the schedule hardly advances: OneCycleLR is 7,500 steps long and was stepped 2 times in 1,000 updates"
    ]
    assert found(total=300.0) == []  # epochs
    assert found(calls=1_000) == []
    assert found(calls=250) == []  # each fourth step
    assert found(updates=100) == []  # too few to tell
    assert found(scheduler="PolynomialLR", calls=0)[0].endswith("PolynomialLR.step() was never called")


def test_one_that_runs_ahead_of_the_optimizer_is_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("schedule", {"python.steps": steps(50), "torch.schedulers": schedule(calls=525)})

    assert "525 times for 500 updates" in found.sentence


def test_a_warm_up_without_an_end_is_named_where_the_loss_gets_no_better(judged: Judged, steps: Steps) -> None:
    def found(scheduler: str = "SequentialLR", falls: bool = False, lr: float = 0.04) -> list[str]:
        course = steps(
            400,
            lr=lambda step: lr * (1 + step) / 400,
            loss=lambda step: 0.6 + (-1 if falls else 1) * step / 1000,
        )
        rows = schedule(scheduler=scheduler, lr=lr, base_lr=0.002)
        return [one.sentence for one in judged("schedule", {"python.steps": course, "torch.schedulers": rows})]

    assert found() == ["the learning rate rises on and on, to 0.04: 20 times the 0.002 that the optimizer was given"]
    assert found("OneCycleLR") == []
    assert found(falls=True) == []
    assert found(lr=0.004) == []


def test_a_cosine_that_goes_up_and_down_with_each_batch_is_named(judged: Judged, steps: Steps) -> None:
    def found(**others: Any) -> list[str]:
        rows = schedule(**{"scheduler": "CosineAnnealingLR", "total": 10.0, **others})
        return [one.sentence for one in judged("schedule", {"python.steps": steps(50), "torch.schedulers": rows})]

    assert found() == [
        "the learning rate goes up and down: CosineAnnealingLR is 10 steps long and was stepped 500 times"
    ]
    fine: list[dict[str, Any]] = [
        {"total": 400.0},
        {"total": 150.0},
        {"calls": 60, "total": 10.0},
        {"updates": None},
        {"scheduler": "CosineAnnealingWarmRestarts"},
    ]
    for usual in fine:
        assert found(**usual) == []


def test_a_plateau_that_was_cut_to_nothing_is_named(judged: Judged, steps: Steps) -> None:
    def found(lr: float, scheduler: str = "ReduceLROnPlateau") -> list[str]:
        rows = schedule(scheduler=scheduler, calls=350, updates=None, lr=lr, base_lr=0.01)
        return [one.sentence for one in judged("schedule", {"python.steps": steps(50), "torch.schedulers": rows})]

    assert found(2e-8) == [
        "ReduceLROnPlateau has cut the learning rate to 2e-08, from 0.01: hardly anything is learned"
    ]
    assert found(1e-3) == []
    assert found(2e-8, "CosineAnnealingLR") == []


def test_one_call_an_update_or_an_epoch_and_one_a_rank_is_fine(judged: Judged, steps: Steps) -> None:
    for calls in (3, 500):
        assert judged("schedule", {"python.steps": steps(50), "torch.schedulers": schedule(calls=calls)}) == []
    accelerate = {"python.steps": steps(50), "torch.schedulers": schedule(calls=1000)}
    assert judged("schedule", accelerate, accelerate) == []


def test_without_a_schedule_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("schedule", {})
