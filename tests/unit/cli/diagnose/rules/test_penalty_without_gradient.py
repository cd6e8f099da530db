"""Losses with a term that is made of a gradient without a graph."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def loss(*names: str, constants: int = 1, plain_grads: int = 1, shape: str = "") -> dict[str, Any]:
    """A chain of operations, the last of which has constants."""
    rows = [
        {
            "backward_call": 0, "number": at, "user": at - 1 if at else None, "operand": 0, "operation": name,
            "shape": shape, "operands": 2, "constants": constants if at == len(names) - 1 else 0, "dim": None,
            "divisor": None, "plain_grads": plain_grads,
        }
        for at, name in enumerate(names)
    ]  # fmt: skip
    return {"torch.autograd_graph": rows}


@pytest.mark.parametrize("names", [("Add",), ("Div", "Sub"), ("Add", "Neg", "Add")])
def test_a_penalty_that_is_a_constant_is_named(judged: Judged, names: tuple[str, ...]) -> None:
    (found,) = judged("penalty-without-gradient", loss(*names, plain_grads=2))

    assert found.sentence.startswith("a term of the loss has no gradient")
    assert found.evidence[1] == "torch.autograd.grad was called without create_graph before it, 2 times"


@pytest.mark.parametrize(
    "tables",
    [
        loss("Add", constants=0),
        loss("Add", plain_grads=0),  # a number is added
        loss("Mean", "Add"),  # to each output, which a mean is taken of
        loss("Add", shape="32x10"),
        loss("Mul"),  # by a number
    ],
)
def test_losses_whose_terms_have_gradients_are_fine(judged: Judged, tables: dict[str, Any]) -> None:
    assert judged("penalty-without-gradient", tables) == []


def test_without_a_backward_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("penalty-without-gradient", {"torch.autograd_graph": []})
