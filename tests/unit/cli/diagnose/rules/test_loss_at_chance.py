"""Losses that stay at that of guessing."""

from __future__ import annotations

import math
from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps


def graph(*shapes: str, operation: str = "LogSoftmax") -> list[dict[str, Any]]:
    usual = {"operand": 0, "operands": 1, "constants": 0, "user": None}
    return [
        {"backward_call": at, "number": 0, "operation": operation, "shape": shape, **usual}
        for at, shape in enumerate(shapes)
    ]


def passes(num: int) -> list[dict[str, Any]]:
    return [{"place": "local `loader`", "passes": num + 1, "whole_passes": num, "batches": 40 * num}]


LOADER = {"torch.dataloaders": passes(12)}


def around(level: float) -> Any:
    return lambda step: level * (1 + 0.02 * math.sin(step))


def test_a_loss_that_stays_at_the_logarithm_of_the_classes_is_named(judged: Judged, steps: Steps) -> None:
    rows = {
        "python.steps": steps(500, loss=around(math.log(6))),
        "torch.autograd_graph": graph("32x6", "32x6"),
        **LOADER,
    }

    (found,) = judged("loss-at-chance", rows)

    assert "guessing among 6 classes" in found.sentence
    assert found.evidence[0] == "after 12 passes over the data; ln 6 = 1.792"


def test_yes_or_no_is_guessed_at_the_logarithm_of_two(judged: Judged, steps: Steps) -> None:
    made_of = graph("", operation="BinaryCrossEntropyWithLogits")
    (found,) = judged(
        "loss-at-chance", {"python.steps": steps(500, loss=around(0.6931)), "torch.autograd_graph": made_of, **LOADER}
    )

    assert "among 2 classes" in found.sentence


def test_one_that_falls_or_is_flat_elsewhere_is_fine(judged: Judged, steps: Steps) -> None:
    made_of = graph("32x6")
    for loss in (lambda step: 1.8 * math.exp(-step / 400), around(1.72), around(1.95)):
        rows = {"python.steps": steps(500, loss=loss), "torch.autograd_graph": made_of, **LOADER}
        assert judged("loss-at-chance", rows) == []


def test_other_losses_and_too_few_are_not_judged(judged: Judged, steps: Steps) -> None:
    flat = steps(500, loss=around(math.log(6)))
    for made_of in ([], graph("32x6", "32x10"), graph("32x1")):
        with pytest.raises(NotApplicable):
            judged("loss-at-chance", {"python.steps": flat, "torch.autograd_graph": made_of, **LOADER})
    with pytest.raises(NoEvidence):
        judged("loss-at-chance", {"python.steps": flat[:100], "torch.autograd_graph": graph("32x6"), **LOADER})


def test_data_that_may_be_random_and_new_in_each_step_is_not_judged(judged: Judged, steps: Steps) -> None:
    rows = {"python.steps": steps(500, loss=around(math.log(6))), "torch.autograd_graph": graph("32x6")}
    for loaders in ([], passes(2)):
        with pytest.raises(NotApplicable):
            judged("loss-at-chance", {**rows, "torch.dataloaders": loaders})
