"""Gradients explode or vanish."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps


def test_a_norm_that_grows_a_thousandfold_and_one_of_nothing_are_named(judged: Judged, steps: Steps) -> None:
    (explodes,) = judged("gradients", {"python.steps": steps(40, grad_norm=lambda step: 1.2**step)})
    (vanishes,) = judged("gradients", {"python.steps": steps(40, grad_norm=1e-12)})

    assert "explode" in explodes.sentence
    assert "vanish" in vanishes.sentence


def test_norms_that_scatter_are_fine(judged: Judged, steps: Steps) -> None:
    assert judged("gradients", {"python.steps": steps(40, grad_norm=lambda step: 1.0 + step % 7)}) == []


def test_without_norms_there_is_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("gradients", {"python.steps": steps(40)})
