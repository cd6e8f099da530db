"""A loss that gets probabilities where it wants logits, or the other way round."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def graph(*operations: str, shape: str = "32x10") -> dict[str, list[dict[str, object]]]:
    """A chain of operations, that of the loss first."""
    rows = [
        {
            "backward_call": 0,
            "number": number,
            "user": number - 1 if number else None,
            "operand": 0,
            "operation": name,
            "shape": shape if number else "",
            "operands": 1,
            "constants": 0,
        }
        for number, name in enumerate(operations)
    ]
    return {"torch.autograd_graph": rows}


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (("NllLoss", "LogSoftmax", "Softmax", "Addmm"), "a cross_entropy of values that have been through a softmax"),
        (("Mul", "NllLoss", "LogSoftmax", "ToCopy", "View", "Sigmoid"), "a cross_entropy of values"),
        (("BinaryCrossEntropyWithLogits", "Squeeze", "Sigmoid"), "through a sigmoid already"),
        (("NllLoss", "Softmax", "Addmm"), "an nll_loss of probabilities, not of their logarithms"),
        (("NllLoss", "Addmm"), "an nll_loss of logits"),
    ],
)
def test_probabilities_for_logits_and_the_other_way_round_are_named(
    judged: Judged, chain: tuple[str, ...], said: str
) -> None:
    (found,) = judged("loss-of-probabilities", graph(*chain))

    assert said in found.sentence


def test_the_least_loss_is_told(judged: Judged) -> None:
    (found,) = judged("loss-of-probabilities", graph("NllLoss", "LogSoftmax", "Softmax", "Addmm"))

    assert "with 10 classes it cannot fall below 1.46" in found.evidence


@pytest.mark.parametrize(
    "chain",
    [
        ("NllLoss", "LogSoftmax", "Addmm", "Softmax"),
        ("NllLoss", "LogSoftmax", "Log", "Softmax"),
        ("NllLoss", "LogSoftmax", "Mul", "Softmax"),  # a temperature: the range is the job's own
        ("NllLoss", "Log", "Softmax"),
        ("BinaryCrossEntropyWithLogits", "Addmm"),
        ("BinaryCrossEntropy", "Sigmoid"),
        ("CompiledFunction",),
        ("NllLoss", "View"),
    ],
)
def test_logits_logarithms_and_what_is_not_known_are_fine(judged: Judged, chain: tuple[str, ...]) -> None:
    assert judged("loss-of-probabilities", graph(*chain)) == []


@pytest.mark.parametrize(
    ("source", "operands", "is_told"),
    [
        ("Softmax", (0, 1), True),
        ("Sigmoid", (0, 1), True),
        ("LogSoftmax", (0, 1), False),
        ("Log", (0, 1), False),
        ("Softmax", (0, 0), False),  # p * c - q is no kl_div
    ],
)
def test_a_kl_div_of_probabilities_is_named(
    judged: Judged, source: str, operands: tuple[int, int], is_told: bool
) -> None:
    tables = graph("Div", "Sum", "Sub", "Mul", source, "Addmm")
    _, _, difference, product, *_ = tables["torch.autograd_graph"]
    for row, operand in zip((difference, product), operands, strict=True):
        row.update(operands=2, constants=1, operand=operand)

    found = judged("loss-of-probabilities", tables)

    assert [one.sentence for one in found] == [
        "the loss is a kl_div of probabilities, not of their logarithms"
    ] * is_told


@pytest.mark.parametrize(
    ("chain", "dim", "shape", "is_told"),
    [
        (("NllLoss", "LogSoftmax", "Addmm"), 0, "32x10", True),
        (("NllLoss", "Log", "Softmax", "Addmm"), 0, "32x10", True),
        (("NllLoss", "LogSoftmax", "Addmm"), 1, "32x10", False),
        (("NllLoss", "LogSoftmax", "Addmm"), 0, "10", False),
        (("NllLoss", "T", "LogSoftmax", "Addmm"), 0, "10x32", False),
        (("NllLoss", "LogSoftmax", "Addmm"), None, "32x10", False),
    ],
)
def test_a_softmax_over_the_samples_is_named(
    judged: Judged, chain: tuple[str, ...], dim: int | None, shape: str, is_told: bool
) -> None:
    tables = graph(*chain, shape=shape)
    for row in tables["torch.autograd_graph"]:
        row["dim"] = dim if "Softmax" in str(row["operation"]) else None

    found = judged("loss-of-probabilities", tables)

    assert [one.sentence for one in found] == [
        "the loss is of a softmax over the 32 samples of the batch, not over the 10 classes"
    ] * is_told


def test_without_a_graph_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("loss-of-probabilities", {})
