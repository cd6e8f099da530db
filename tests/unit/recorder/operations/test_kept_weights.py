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
    """What a job keeps of its model."""

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
    assert len(good) == 7
    assert len(params) == 4


def test_frozen_weights_and_subclasses_share_nothing(recorder: Recorder) -> None:
    class Shard(torch.Tensor):  # type: ignore[misc]
        def data_ptr(self) -> int:
            raise AssertionError("the job's own code was called")

    teacher = torch.nn.Linear(4, 4).requires_grad_(False)
    best = teacher.state_dict()
    shards = {"weight": torch.ones(2).as_subclass(Shard), "bias": torch.ones(2)}

    rows = told(recorder)

    assert rows["local `best`"]["shared"] == 0
    assert (rows["local `shards`"]["tensors"], rows["local `shards`"]["shared"]) == (1, 0)
    assert len(best) == len(shards)
