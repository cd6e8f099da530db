"""Gradients that are NaN while the loss is a number."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps


def norm(bad: Callable[[int], bool]) -> Callable[[int], float]:
    return lambda step: math.nan if bad(step) else 2.0


def test_nan_in_every_step_is_named(judged: Judged, steps: Steps) -> None:
    recorded = steps(300, loss=1.5, grad_norm=norm(lambda step: step >= 50 or step == 7))
    (found,) = judged("gradients-not-finite", {"python.steps": recorded})

    assert found.sentence == "gradients are NaN or infinite in 100 % of the steps, while the loss is finite"
    assert found.since_step == 50
    newest = steps(300, loss=1.5, grad_norm=norm(lambda step: step >= 250))
    assert judged("gradients-not-finite", {"python.steps": newest}) == []


def test_a_scaler_that_skips_now_and_then_and_a_loss_that_is_nan_are_fine(judged: Judged, steps: Steps) -> None:
    now_and_then = steps(300, loss=1.5, grad_norm=norm(lambda step: step % 40 == 0))

    assert judged("gradients-not-finite", {"python.steps": now_and_then}) == []
    assert judged("gradients-not-finite", {"python.steps": steps(300, loss=math.nan, grad_norm=math.nan)}) == []


def test_without_norms_nothing_is_judged(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("gradients-not-finite", {"python.steps": steps(300, loss=1.5)})
