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


def test_without_a_graph_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("loss-of-probabilities", {})
