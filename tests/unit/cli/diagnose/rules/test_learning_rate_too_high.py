"""The learning rate is far above what its optimizer works with."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import Certainty, NoEvidence, NotApplicable

from .conftest import Judged, Steps


def tables(rows: list[dict[str, Any]], *optimizers: str) -> dict[str, list[dict[str, Any]]]:
    return {
        "python.steps": rows,
        "python.torch_trace": [{"module": name, "stage": "step", "step": 1} for name in optimizers],
    }


def uneven(step: int) -> float:
    return 2.0 + step * 7919 % 13 / 13


def rises(step: int) -> float:
    return 1.0 + step / 20


@pytest.mark.parametrize(("optimizer", "lr"), [("Adam", 0.1), ("AdamW", 1.0), ("RMSprop", 0.3), ("SGD", 10.0)])
def test_a_loss_that_was_better_before_is_its_fault(judged: Judged, steps: Steps, optimizer: str, lr: float) -> None:
    (found,) = judged("learning-rate-too-high", tables(steps(100, loss=rises, lr=lr), optimizer))

    assert f"the learning rate is {lr:.3g}" in found.sentence
    assert "was 1.475 before" in found.sentence
    assert found.where == optimizer


def test_what_no_adam_works_with_is_named_although_the_loss_comes_down_from_where_it_was_thrown(
    judged: Judged, steps: Steps
) -> None:
    thrown = steps(100, loss=lambda step: 1e6 / (step + 1), lr=1.0)

    (found,) = judged("learning-rate-too-high", tables(thrown, "Adam"))

    assert "before" not in found.sentence
    assert judged("learning-rate-too-high", tables(thrown, "SGD")) == []


@pytest.mark.parametrize(("optimizer", "lr"), [("Adam", 0.01), ("SGD", 1.0)])
def test_a_usual_one_is_not_named_whatever_the_loss_does(
    judged: Judged, steps: Steps, optimizer: str, lr: float
) -> None:
    assert judged("learning-rate-too-high", tables(steps(100, loss=rises, lr=lr), optimizer)) == []


def test_a_high_one_with_which_the_loss_falls_or_has_converged_is_fine(judged: Judged, steps: Steps) -> None:
    falls = steps(100, loss=lambda step: 2 / (step + 1), lr=0.1)
    converged = steps(100, loss=uneven, lr=0.1)
    nothing_left = steps(100, loss=lambda step: 1e-6 * rises(step), lr=1.0)

    assert judged("learning-rate-too-high", tables(falls, "Adam")) == []
    assert judged("learning-rate-too-high", tables(converged, "Adam")) == []
    assert judged("learning-rate-too-high", tables(nothing_left, "Adam")) == []


def test_a_high_one_of_a_deep_network_whose_loss_stays_where_it_was_is_possibly_its_fault(
    judged: Judged, steps: Steps
) -> None:
    flat = tables(steps(100, loss=uneven, lr=0.1), "Adam")
    layers = [{"module": f"Net.{number}", "stage": "forward", "step": 1} for number in range(8)]
    deep = {**flat, "python.torch_trace": flat["python.torch_trace"] + layers}

    (found,) = judged("learning-rate-too-high", deep)

    assert found.certainty is Certainty.POSSIBLE
    assert "and does not fall" in found.sentence
    falling = {**deep, "python.steps": steps(100, loss=lambda step: 2 - step / 200, lr=0.1)}
    assert judged("learning-rate-too-high", falling) == []


def test_optimizers_that_scale_it_themselves_and_several_are_not_judged(judged: Judged, steps: Steps) -> None:
    rows = steps(100, loss=uneven, lr=1.0)
    for optimizers in (("Prodigy",), ("Adam", "SGD")):
        with pytest.raises(NotApplicable):
            judged("learning-rate-too-high", tables(rows, *optimizers))
    for other in (steps(100, loss=lambda step: step - 50.0, lr=1.0), steps(100, loss=uneven, lr=1.0, rollout=2)):
        with pytest.raises(NotApplicable):
            judged("learning-rate-too-high", tables(other, "Adam"))


def test_few_losses_and_none_with_a_learning_rate_are_no_evidence(judged: Judged, steps: Steps) -> None:
    for rows in (steps(20, loss=1.0, lr=1.0), steps(100, loss=1.0), steps(100, lr=1.0)):
        with pytest.raises(NoEvidence):
            judged("learning-rate-too-high", tables(rows, "Adam"))
