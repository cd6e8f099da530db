"""Warm-ups that begin anew with each epoch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps

NAME = "warm-up-repeats"


def test_a_warm_up_that_begins_anew_is_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged(NAME, {"python.steps": steps(400, lr=lambda step: 1e-5 * (step % 50))})

    assert found.sentence.startswith("the learning rate rises to 0.00049 and falls back to 0 every 50 steps")
    assert found.since_step == 50


@pytest.mark.parametrize(
    "lr",
    [
        lambda step: min(1.0, step / 100) * 1e-3,
        lambda step: 1e-3 * (1 + math.cos(math.pi * (step % 50) / 50)) / 2,  # restarts
        lambda step: 1e-3 * (1 - abs(step % 50 - 25) / 25),  # up and down
        lambda step: 1e-5 * (step % (30 + 10 * (step // 200))),
        lambda step: 1e-3,
    ],
)
def test_other_schedules_are_fine(judged: Judged, steps: Steps, lr: Callable[[int], float]) -> None:
    assert judged(NAME, {"python.steps": steps(400, lr=lr)}) == []


def test_without_learning_rates_and_with_few_nothing_is_said(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged(NAME, {"python.steps": steps(100, lr=lambda step: None)})
    with pytest.raises(NoEvidence):
        judged(NAME, {"python.steps": steps(20, lr=lambda step: 1e-3)})
