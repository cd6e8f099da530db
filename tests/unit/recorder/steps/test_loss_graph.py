"""The operations of a loss, noted from torch's own graphs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402

from probe_agent.recorder.steps.loss_graph import MAX_LOSSES, MAX_OPERATIONS, LossGraph  # noqa: E402

pytestmark = pytest.mark.torch


def is_plain(value: object) -> bool:
    return type(value) is torch.Tensor


def test_the_number_that_is_divided_by_is_noted() -> None:
    weight = torch.ones(3, requires_grad=True)

    def refuse(saved: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the job would notice")

    graph = LossGraph(is_plain)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, refuse):
        loss = (weight / torch.ones(3)).sum() / 8 / torch.tensor(0.5) / torch.ones(1)
    graph.note(loss)

    assert [one.divisor for one in graph.operations if one.operation == "Div"][1:] == [0.5, 8.0, None]


@pytest.mark.parametrize(("dim", "told"), [(0, 0), (1, 1), (-1, 2), (-3, 0)])
def test_the_dimension_of_a_softmax_is_noted(dim: int, told: int) -> None:
    graph = LossGraph(is_plain)

    graph.note(torch.randn(2, 3, 4, requires_grad=True).log_softmax(dim).exp().softmax(dim).sum())

    assert [one.dim for one in graph.operations if one.operation.endswith("Softmax")] == [told, told]
    assert [one.dim for one in graph.operations if one.operation == "Sum"] == [None]


def noted(loss: object) -> list[tuple[str, str | None, int, int]]:
    graph = LossGraph(is_plain)
    graph.note(loss)
    return [(one.operation, one.shape, one.operands, one.constants) for one in graph.operations]


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_names_shapes_and_constants_are_noted_nearest_first() -> None:
    outputs = torch.nn.Linear(4, 3)(torch.randn(8, 4))

    of_classes = noted(functional.cross_entropy(outputs.softmax(1), torch.zeros(8, dtype=torch.long)))
    of_numbers = noted(functional.mse_loss(outputs[:, :1], torch.randn(8)))

    assert of_classes[:4] == [
        ("NllLoss", "", 1, 0), ("LogSoftmax", "8x3", 1, 0), ("Softmax", "8x3", 1, 0), ("Addmm", "8x3", 3, 1),
    ]  # fmt: skip
    assert of_numbers[:3] == [("MseLoss", "", 2, 1), ("Expand", "8x8", 1, 0), ("Slice", "8x1", 1, 0)]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_operations_whose_shape_is_not_known_are_noted_without_it(layout: torch.layout) -> None:
    rows = [torch.randn(2, 4), torch.randn(3, 4)]
    nested = torch.nested.nested_tensor(rows, layout=layout, requires_grad=True)

    shapes = {name: shape for name, shape, *_ in noted(nested.clone().to_padded_tensor(0.0).sum())}

    assert shapes["Sum"] == ""
    assert shapes["Clone"] is None


def test_a_graph_that_is_already_used_and_a_large_one_are_noted_in_part() -> None:
    weight = torch.ones(3, requires_grad=True)
    loss = sum((weight * number).sum() for number in range(200))
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    graph = LossGraph(is_plain)

    for _ in range(2 * MAX_LOSSES):
        graph.note(loss)

    assert graph.num_losses == MAX_LOSSES
    assert 0 < len(graph.operations) <= MAX_LOSSES * MAX_OPERATIONS
    assert noted(torch.ones(())) == [], "no graph"
