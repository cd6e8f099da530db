"""Weights that a job keeps aside: copies, and the model's own."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from probe_agent.recorder.config import Settings  # noqa: E402
from probe_agent.recorder.operations import kept_weights  # noqa: E402
from probe_agent.recorder.source import Recorder  # noqa: E402


class Run:
    """A model, another name of it, and what is kept of it."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.best_model = model
        self.kept = {"epoch": 3, "weights": dict(model.state_dict())}


def told(recorder: Recorder) -> dict[str, dict[str, Any]]:
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(kept_weights.answer(recorder, {})))
    thread.start()
    thread.join()
    rows = [dict(zip(kept_weights.COLUMNS, row, strict=True)) for row in found[0]["rows"]]
    return {row["place"].rpartition(" of test_")[0]: row for row in rows}


@pytest.fixture
def recorder() -> Recorder:
    it = Recorder(Settings({}), lambda name, error: True)
    it.step.thread = threading.get_ident()
    return it


def test_what_shares_memory_with_the_model_is_told_from_copies(recorder: Recorder) -> None:
    run = Run(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
    best = run.model.state_dict()
    good = copy.deepcopy(best)
    params = list(run.model.parameters())

    rows = told(recorder)

    assert rows["local `best`"]["module"] == "Sequential"
    # Of batch norm's five tensors two are parameters: running averages and the count of batches are none.
    assert (rows["local `best`"]["tensors"], rows["local `best`"]["shared"]) == (7, 4)
    assert (rows["local `good`"]["tensors"], rows["local `good`"]["shared"]) == (7, 0)
    assert (rows["local `params`"]["tensors"], rows["local `params`"]["shared"]) == (4, 4)
    assert rows["attribute `weights` of attribute `kept` of local `run`"]["shared"] == 4
    assert rows["attribute `best_model` of local `run`"]["shared"] == 4
    assert rows["attribute `best_model` of local `run`"]["size"] is None
    assert len(good) == 7
    assert len(params) == 4


def test_frozen_weights_and_subclasses_share_nothing(recorder: Recorder) -> None:
    called: list[Any] = []

    class Shard(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
            called.append(args)
            return super().__torch_function__(*args, **kwargs)

    teacher = torch.nn.Linear(4, 4).requires_grad_(False)
    best = teacher.state_dict()
    student = torch.nn.Linear(2, 2)
    student.weight = torch.nn.Parameter(torch.ones(2, 2).as_subclass(Shard))
    run = Run(student)
    shards = {"weight": student.weight, "bias": torch.ones(2)}

    called.clear()
    rows = told(recorder)

    assert called == []  # no code of the job
    assert rows["local `best`"]["shared"] == 0
    assert (rows["local `shards`"]["tensors"], rows["local `shards`"]["shared"]) == (1, 0)
    assert rows["attribute `best_model` of local `run`"]["shared"] == 2
    assert len(best) == len(shards)
    assert run.model is student


def test_a_lazy_clone_stays_one_and_is_a_copy(recorder: Recorder) -> None:
    model = torch.nn.Linear(4, 4)
    good = {name: torch._lazy_clone(tensor) for name, tensor in model.state_dict().items()}

    rows = told(recorder)

    assert (rows["local `good`"]["tensors"], rows["local `good`"]["shared"]) == (2, 0)
    assert all(map(torch._C._is_cow_tensor, (*good.values(), *model.parameters())))


def test_tensors_without_storage_share_nothing(recorder: Recorder) -> None:
    model = torch.nn.Linear(4, 4)
    seen: list[dict[str, Any]] = []

    def loss(weights: dict[str, Any], sample: Any) -> Any:
        seen.append(told(recorder))
        return torch.func.functional_call(model, weights, (sample,)).sum()

    batch = torch.ones(2, 4)
    torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(dict(model.named_parameters()), batch)
    odd = [torch.ones(2, 2).to_sparse(), torch.ones(2, 2).to_mkldnn(), torch.ones(2, 2, device="meta")]

    rows = told(recorder)

    wrapped = next(row for row in seen[0].values() if row["place"].startswith("local `weights` of loss()"))
    assert (wrapped["tensors"], wrapped["shared"]) == (2, 0)
    assert (rows["local `odd`"]["tensors"], rows["local `odd`"]["shared"]) == (len(odd), 0)


def test_a_lazy_module_is_told_before_its_first_call(recorder: Recorder) -> None:
    run = Run(torch.nn.LazyLinear(4))

    assert told(recorder)["attribute `best_model` of local `run`"]["tensors"] == 2
    assert run.model.has_uninitialized_params()
