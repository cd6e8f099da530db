"""Losses that are divided by a number, and again by the same."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def loss(*chain: tuple[str, float | None], shape: str = "") -> dict[str, Any]:
    """A chain of operations, each with what it divides by."""
    rows = [
        {
            "backward_call": 0, "number": at, "user": at - 1 if at else None, "operand": 0, "operation": name,
            "shape": shape, "operands": 1, "constants": 0, "dim": None, "divisor": divisor, "plain_grads": 0,
        }
        for at, (name, divisor) in enumerate(chain)
    ]  # fmt: skip
    return {"torch.autograd_graph": rows}


@pytest.mark.parametrize("between", [(), (("ToCopy", None),)])
def test_a_loss_that_is_divided_twice_is_named(judged: Judged, between: tuple[tuple[str, None], ...]) -> None:
    (found,) = judged("loss-divided-twice", loss(("Div", 8.0), *between, ("Div", 8.0), ("NllLoss", None)))

    assert found.sentence == "the loss is divided by 8, and again by 8: gradients are 8 times too small"


@pytest.mark.parametrize(
    "tables",
    [
        loss(("Div", 8.0), ("NllLoss", None)),
        loss(("Div", 8.0), ("Div", 4.0), ("NllLoss", None)),
        loss(("Div", 32.0), ("Div", 32.0), ("Sum", None)),  # by height and width
        loss(("Div", 0.5), ("Div", 0.5), ("Mean", None)),  # by a temperature
        loss(("Div", None), ("Div", None), ("Mean", None)),  # by tensors
        loss(("Div", 8.0), ("Add", None), ("Div", 8.0)),
    ],
)
def test_a_loss_that_is_divided_once_or_made_a_mean_is_fine(judged: Judged, tables: dict[str, Any]) -> None:
    assert judged("loss-divided-twice", tables) == []


def test_without_a_backward_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("loss-divided-twice", {"torch.autograd_graph": []})
