"""The optimizer holds other parameters than the model's."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged

SPAN = {"module": "Net", "stage": "backward", "step": 1, "ts": "2026-01-01"}
NET = {"module": "Net", "class": "Net", "depth": 0, "trainable": 100, "parameters": 100, "place": "model"}


def tables(held: int) -> dict[str, list[dict[str, object]]]:
    optimizer = {"optimizer": "Adam", "param_group": 0, "parameters": held}
    return {"python.torch_trace": [SPAN], "torch.modules": [NET], "torch.optimizers": [optimizer]}


def test_parameters_that_no_optimizer_holds_are_counted(judged: Judged) -> None:
    (found,) = judged("parameters-without-optimizer", tables(60))

    assert found.sentence == "40 % of Net's trainable parameters are in no optimizer"


def test_an_optimizer_with_all_of_them_is_fine(judged: Judged) -> None:
    assert judged("parameters-without-optimizer", tables(100)) == []


def test_without_a_model_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("parameters-without-optimizer", {})
