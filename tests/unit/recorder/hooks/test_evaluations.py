"""Evaluations are counted: without gradients, with dropout or batch norm active, and with gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.optim.swa_utils import AveragedModel, update_bn  # noqa: E402

from probe_agent.recorder.operations import evaluations  # noqa: E402

INPUTS = torch.ones(4, 8)
Evaluate = Callable[[nn.Module], object]


def net(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 1), *(more or (nn.Dropout(0.1),)))


def trained(it, evaluate: Evaluate, model: nn.Module | None = None, times: int = 3) -> list[dict[str, object]]:
    """Train, with an evaluation between two steps now and then; return the rows of torch.evaluations."""
    model = model or net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(4 * times + 1):
        optimizer.zero_grad()
        model(INPUTS).sum().backward()
        optimizer.step()
        if step % 4 == 3:
            evaluate(model)
    answer = evaluations.answer(it.recorder, {})
    return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]


def row(**counts: int) -> dict[str, object]:
    usual = {"without_gradients": 0, "active": 0, "with_gradients": 0, "trainable": True}
    return {"module": "Sequential", **usual, **counts}


@torch.no_grad()
def without_gradients(model: nn.Module) -> None:
    for _ in range(3):
        model(INPUTS)


def as_it_should_be(model: nn.Module) -> None:
    model.eval()
    without_gradients(model)
    model.train()


def with_gradients(model: nn.Module) -> None:
    model.eval()
    for _ in range(3):
        model(INPUTS)
    model.train()


@pytest.mark.parametrize("every", [1, 1000])
@pytest.mark.parametrize(
    ("evaluate", "counts"),
    [
        (as_it_should_be, {"without_gradients": 3}),
        (without_gradients, {"without_gradients": 3, "active": 3}),
        (with_gradients, {"with_gradients": 3}),
    ],
)
def test_evaluations_of_each_kind_are_counted(recording, evaluate: Evaluate, counts: dict[str, int], every: int):
    with recording(trace_every=every) as it:
        assert trained(it, evaluate) == [row(**counts)]


@pytest.mark.parametrize(
    ("layers", "active"), [([nn.Dropout(0.0)], 0), ([nn.LayerNorm(1)], 0), ([nn.BatchNorm1d(1)], 3)]
)
def test_what_computes_the_same_in_both_modes_is_not_active(recording, layers: list[nn.Module], active: int):
    with recording() as it:
        assert trained(it, without_gradients, net(*layers)) == [row(without_gradients=3, active=active)]


def test_batch_norm_that_is_kept_in_evaluation_mode_is_not_active(recording):
    model = net(nn.BatchNorm1d(1))
    model[1].eval()

    with recording() as it:
        assert trained(it, without_gradients, model) == [row(without_gradients=3)]


def test_averaging_batch_norm_anew_is_not_a_mistake(recording):
    model = net(nn.BatchNorm1d(1))
    averaged = AveragedModel(model)

    with recording() as it:
        (found,) = trained(it, lambda model: update_bn([INPUTS, INPUTS], averaged), model)

    assert found == row(module="AveragedModel", without_gradients=3)


def attack(model: nn.Module) -> None:
    model.eval()
    inputs = INPUTS.clone().requires_grad_()
    torch.autograd.grad(model(inputs).sum(), inputs)
    model.train()


def stay_in_evaluation_mode(model: nn.Module) -> None:
    model.eval()


def evaluate_a_frozen_part(model: nn.Module) -> None:
    teacher = net().requires_grad_(False)
    teacher.eval()
    teacher(INPUTS)
    teacher.train()


@pytest.mark.parametrize("every", [1, 1000])
@pytest.mark.parametrize("evaluate", [attack, stay_in_evaluation_mode, evaluate_a_frozen_part])
def test_what_needs_its_gradients_or_has_none_is_no_evaluation_with_gradients(
    recording, evaluate: Evaluate, every: int
):
    with recording(trace_every=every) as it:
        assert trained(it, evaluate) == []


def test_the_training_is_the_same_and_eval_is_torchs_own_afterwards(recording):
    def losses(evaluate: Evaluate) -> list[float]:
        torch.manual_seed(3)
        model, told = net(), []
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(9):
            loss = model(torch.randn(4, 8)).square().sum()
            loss.backward()
            optimizer.step()
            evaluate(model)
            told.append(loss.item())
        return told

    own = nn.Module.eval
    alone = losses(with_gradients)
    with recording(trace_every=3) as it:  # not the last step
        assert nn.Module.eval is not own
        assert losses(with_gradients) == alone
        assert it.recorder.evaluations.models.alive() == []  # its models are gone, and nothing keeps them

    assert nn.Module.eval is own


@pytest.mark.parametrize("every", [1, 1000])
def test_a_failure_of_ours_stays_out_of_the_job(recording, every: int):
    with recording(trace_every=every) as it:
        it.recorder.evaluations.models = None  # nothing can be noted
        _train(with_gradients)
        _train(without_gradients)
        assert {row["source"] for row in it.rows("probe.errors")} <= {"phases", "torch_trace"}
        assert it.rows("probe.errors")
        it.failures._buffer.rows.clear()


def _train(evaluate: Evaluate) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(4):
        model(INPUTS).sum().backward()
        optimizer.step()
        evaluate(model)


def test_an_eval_that_the_job_has_kept_leaves_no_hook_after_detach(recording):
    model = net()
    with recording():
        _train(without_gradients)
        kept = model.eval

    kept()

    assert not model.training
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert "_has_any_global_hook" in torch.nn.modules.module._has_any_global_hook.__qualname__


def test_eval_in_compiled_code_compiles_as_before(recording):
    import torch._dynamo

    model = net()

    def evaluated(inputs: torch.Tensor) -> torch.Tensor:
        model.eval()
        output = model(inputs)
        model.train()
        return output

    def outcome() -> str:
        torch._dynamo.reset()
        try:
            torch.compile(evaluated, fullgraph=True, backend="eager")(INPUTS)
        except Exception as error:  # noqa: BLE001  # whatever Dynamo says is to be the same
            return type(error).__name__
        return "compiled"

    alone = outcome()
    with recording():
        _train(without_gradients)
        assert outcome() == alone
        torch._dynamo.utils.counters.clear()
        again = torch.compile(evaluated, fullgraph=True, backend="eager")
        for _ in range(5):
            again(INPUTS)
        assert torch._dynamo.utils.counters["frames"]["ok"] <= 1, "it compiles again with each call"
    torch._dynamo.utils.counters.clear()
    again(INPUTS)
    assert not torch._dynamo.utils.counters["frames"]["ok"], "detach makes it compile again"
