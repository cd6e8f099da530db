"""Gradients explode or vanish."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps


def test_a_norm_that_grows_a_thousandfold_and_one_of_nothing_are_named(judged: Judged, steps: Steps) -> None:
    (explodes,) = judged("gradients", {"python.steps": steps(40, grad_norm=lambda step: 1.2**step)})
    (vanishes,) = judged("gradients", {"python.steps": steps(40, grad_norm=1e-12)})

    assert "explode" in explodes.sentence
    assert "vanish" in vanishes.sentence


def test_gradients_may_vanish_with_the_loss(judged: Judged, steps: Steps) -> None:
    learned = steps(400, grad_norm=0.0, loss=lambda step: max(2 - step / 50, 0.0))
    dead = steps(400, grad_norm=0.0, loss=2.0)

    assert judged("gradients", {"python.steps": learned}) == []
    assert judged("gradients", {"python.steps": dead})


def test_gradients_that_are_exactly_0_at_once_are_named_and_such_as_are_only_small_are_not(
    judged: Judged, steps: Steps
) -> None:
    def norms(last: float) -> dict[str, Any]:
        return {"python.steps": steps(400, grad_norm=lambda step: 1.0 if step < 300 else last, loss=2.0)}

    (zero,) = judged("gradients", norms(0.0))

    assert zero.sentence == "all gradients are exactly 0"
    assert zero.since_step == 299
    assert judged("gradients", norms(1e-9)) == []


def test_without_an_advantage_a_policy_has_no_gradient(judged: Judged, steps: Steps) -> None:
    def norm(step: int) -> float:
        return 1.0 if step < 300 else 0.0

    assert judged("gradients", {"python.steps": steps(400, grad_norm=norm, loss=2.0, rollout=3)}) == []


def test_norms_that_scatter_are_fine(judged: Judged, steps: Steps) -> None:
    assert judged("gradients", {"python.steps": steps(40, grad_norm=lambda step: 1.0 + step % 7)}) == []


def test_without_norms_there_is_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("gradients", {"python.steps": steps(40)})
