"""Gradients from layer to layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps


def layers(norm: Callable[[int], float]) -> list[dict[str, Any]]:
    return [
        {"place": at, "module": f"Net.{at}", "parameter": "weight", "values": 100, "zeros": 0, "norm": norm(at)}
        for at in range(9)
    ]


def test_gradients_that_vanish_and_that_explode_are_named(judged: Judged, steps: Steps) -> None:
    (vanishes,) = judged(
        "layer-gradients", {"python.steps": steps(50), "torch.gradients": layers(lambda at: 0.1 ** (8 - at))}
    )
    (explodes,) = judged("layer-gradients", {"python.steps": steps(50), "torch.gradients": layers(lambda at: 0.1**at)})

    assert "vanish" in vanishes.sentence
    assert "explode" in explodes.sentence
    assert vanishes.where == "Net.0"


def test_a_factor_of_a_hundred_is_fine(judged: Judged, steps: Steps) -> None:
    tables = {"python.steps": steps(50), "torch.gradients": layers(lambda at: 2.0**-at)}

    assert judged("layer-gradients", tables) == []


def test_a_policy_that_has_settled_has_nothing_to_compare(judged: Judged, steps: Steps) -> None:
    for size in (1e-8, 1e-12, 1e-3):  # over the root of 100 elements; exactly 0 is no matter of layers
        settled = layers(lambda at, size=size: size if at > 4 else 0.0)

        assert judged("layer-gradients", {"python.steps": steps(50), "torch.gradients": settled}) == []


def test_without_gradients_or_steps_there_is_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("layer-gradients", {"python.steps": steps(50)})
    with pytest.raises(NoEvidence):
        judged("layer-gradients", {"python.steps": steps(3), "torch.gradients": layers(lambda at: 1.0)})
