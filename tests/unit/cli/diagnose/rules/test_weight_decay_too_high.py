"""Weight decay that pulls all weights to zero."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def optimizer(kind: str, lr: float, weight_decay: float, parameters: int = 100, **others: Any) -> dict[str, Any]:
    row = {"optimizer": kind, "place": "global `optimizer`", "param_group": 0, "lr": lr, "weight_decay": weight_decay}
    rest = {**row, "param_group": 1, "weight_decay": 0.0, "parameters": 100, "options": "{}"}
    return {"torch.optimizers": [{**row, "parameters": parameters, "options": "{}", **others}, rest]}


@pytest.mark.parametrize(
    ("kind", "lr", "weight_decay", "said"),
    [
        ("AdamW", 1e-3, 50.0, "each step takes 5 % off every weight, which halves it in 14 steps"),
        ("SGD", 0.1, 0.1, "each step takes 1 % off every weight, which halves it in 69 steps"),
        ("Adam", 1e-3, 2.0, "it is most of the step"),
    ],
)
def test_one_that_pulls_the_weights_to_zero_is_named(
    kind: str, lr: float, weight_decay: float, said: str, judged: Judged
) -> None:
    (found,) = judged("weight-decay-too-high", optimizer(kind, lr, weight_decay))

    assert found.sentence.endswith(said)
    assert found.where == "global `optimizer`, group 0"


@pytest.mark.parametrize(
    ("kind", "lr", "weight_decay"), [("AdamW", 1e-3, 1.0), ("SGD", 0.1, 5e-4), ("Adam", 1e-3, 0.1), ("SGD", 0.1, 0.0)]
)
def test_usual_ones_are_fine(kind: str, lr: float, weight_decay: float, judged: Judged) -> None:
    assert judged("weight-decay-too-high", optimizer(kind, lr, weight_decay)) == []


def test_adam_that_decouples_is_judged_as_adamw_and_a_small_group_is_left_out(judged: Judged) -> None:
    decouples = {"options": '{"decoupled_weight_decay": true}'}

    assert judged("weight-decay-too-high", optimizer("Adam", 1e-4, 2.0, **decouples)) == []
    assert judged("weight-decay-too-high", optimizer("Adam", 1e-2, 2.0, **decouples))
    assert judged("weight-decay-too-high", optimizer("AdamW", 1e-3, 50.0, parameters=10)) == []


def test_an_optimizer_that_is_not_known_is_not_judged(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("weight-decay-too-high", optimizer("Adafactor", 1e-3, 50.0))
