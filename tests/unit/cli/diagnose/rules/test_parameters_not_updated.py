"""Parameters that the optimizer never changes."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import Certainty, NoEvidence, NotApplicable

from .conftest import Judged


def parameter(name: str, **others: Any) -> dict[str, Any]:
    return {
        "module": "Net", "parameter": name, "parameters": 100, "trainable": True, "versions": 200, "updates": 200,
        "optimizer": "Adam", "lr": 1e-3, "steps_seen": 200, "has_gradient": True, **others,
    }  # fmt: skip


def test_a_parameter_that_was_never_changed_is_named(judged: Judged) -> None:
    tables = {"torch.parameters": [parameter("a"), parameter("b", versions=1, updates=None)]}

    (found,) = judged("parameters-not-updated", tables)

    assert found.where == "Net.b"
    assert found.share == 0.5


def test_a_small_layer_that_is_called_and_never_changed_is_named(judged: Judged) -> None:
    never = {"versions": 1, "updates": None, "has_gradient": False}
    body = parameter("weight", module="Net.body", parameters=1_000_000)
    router = [parameter("weight", module="Net.router", **never), parameter("bias", module="Net.router", **never)]
    call = {"module": "Net.router", "stage": "forward", "phase": "train"}

    (found,) = judged("parameters-not-updated", {"torch.parameters": [body, *router], "python.torch_trace": [call]})

    assert found.where == "Net.router.weight"
    assert found.certainty is Certainty.POSSIBLE
    evaluated = [{**call, "phase": "eval"}]
    assert (
        judged("parameters-not-updated", {"torch.parameters": [body, *router], "python.torch_trace": evaluated}) == []
    )
    with_bias = [body, {**router[0], "versions": 200}, router[1]]
    assert judged("parameters-not-updated", {"torch.parameters": with_bias, "python.torch_trace": [call]}) == []


def test_an_optimizer_that_changes_nothing_is_named(judged: Judged) -> None:
    untouched = {"versions": 1, "updates": None, "has_gradient": False}

    (found,) = judged("parameters-not-updated", {"torch.parameters": [parameter(name, **untouched) for name in "ab"]})

    assert found.sentence.startswith("no parameter was ever changed")


def test_a_group_with_learning_rate_zero_is_named(judged: Judged) -> None:
    (found,) = judged("parameters-not-updated", {"torch.parameters": [parameter("a"), parameter("b", lr=0.0)]})

    assert "learning rate 0" in found.sentence


def test_frozen_ones_and_a_fused_optimizer_are_fine(judged: Judged) -> None:
    frozen = [parameter("a"), parameter("b", versions=1, updates=None, trainable=False)]
    fused = [parameter("a", versions=1, updates=None, has_gradient=False)]
    options = [{"options": '{"fused": true}'}]

    assert judged("parameters-not-updated", {"torch.parameters": frozen}) == []
    assert judged("parameters-not-updated", {"torch.parameters": fused, "torch.optimizers": options}) == []


def test_without_parameters_or_steps_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("parameters-not-updated", {})
    with pytest.raises(NotApplicable):
        judged("parameters-not-updated", {"torch.parameters": [parameter("a", steps_seen=3)]})


def test_of_a_sharded_optimizer_a_parameter_counts_that_no_rank_changes(judged: Judged) -> None:
    def rank(*untouched: str) -> dict[str, Any]:
        rows = [parameter(name, optimizer="ZeroRedundancyOptimizer") for name in "abc" if name not in untouched]
        rows += [parameter(name, optimizer="ZeroRedundancyOptimizer", versions=2, updates=None) for name in untouched]
        return {"torch.parameters": rows}

    assert judged("parameters-not-updated", rank("a"), rank("b", "c")) == []
    assert {found.where for found in judged("parameters-not-updated", rank("a", "b"), rank("b", "c"))} == {"Net.b"}
    with pytest.raises(NoEvidence, match="ask all ranks"):
        judged("parameters-not-updated", rank("a"), world_size=2)
