"""Every output is compared with every target."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged

Row = dict[str, object]


def row(number: int, user: int | None, operation: str, shape: str, operands: int = 1, constants: int = 0) -> Row:
    of_graph = {"backward_call": 0, "number": number, "user": user, "operand": 0, "operation": operation}
    return {**of_graph, "shape": shape, "operands": operands, "constants": constants}


def by_torch(loss: str, stretched: str, outputs: str, maker: str = "Addmm") -> list[Row]:
    return [row(0, None, loss, "", 2, 1), row(1, 0, "Expand", stretched), row(2, 1, maker, outputs, 3, 1)]


def by_hand(compared: str, outputs: str, maker: str = "Addmm", constants: int = 1) -> list[Row]:
    return [
        row(0, None, "Mean", ""), row(1, 0, "Pow", compared), row(2, 1, "Sub", compared, 2, constants),
        row(3, 2, maker, outputs, 3, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "graph",
    [by_torch("MseLoss", "32x32", "32x1"), by_torch("SmoothL1Loss", "8x8", "8"), by_hand("32x32", "32x1")],
)
def test_outputs_that_are_stretched_against_the_targets_are_named(judged: Judged, graph: list[Row]) -> None:
    (found,) = judged("loss-broadcast", {"torch.autograd_graph": graph})

    assert found.sentence.startswith("the loss compares each output with the targets of all: ")


@pytest.mark.parametrize(
    "graph",
    [
        by_torch("MseLoss", "32x1", "32x1"),
        [row(0, None, "MseLoss", "", 2, 1), row(1, 0, "Addmm", "32x32", 3, 1)],
        by_hand("32x1", "32x1"),
        by_hand("32x32", "32x1", constants=0),  # a distance of all pairs
        by_hand("32x32", "32x1", maker="Unsqueeze"),
        by_hand("32x32", "32x1", maker="AccumulateGrad"),  # a parameter for each row
        by_hand("1x1", "1x1"),
        by_hand("32x7", "32x1"),
    ],
)
def test_like_with_like_and_what_is_meant_are_fine(judged: Judged, graph: list[Row]) -> None:
    assert judged("loss-broadcast", {"torch.autograd_graph": graph}) == []


def test_without_a_graph_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("loss-broadcast", {})
