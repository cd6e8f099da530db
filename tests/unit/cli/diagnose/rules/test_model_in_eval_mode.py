"""The model trains in evaluation mode."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps

SPAN = {"module": "Net", "stage": "backward", "step": 1, "ts": "2026-01-01"}


def net(training: bool) -> dict[str, object]:
    return {"module": "Net", "class": "Net", "depth": 0, "trainable": 10, "training": training, "place": "model"}


def test_a_model_left_in_evaluation_mode_is_named(judged: Judged, steps: Steps) -> None:
    tables = {"python.steps": steps(50), "python.torch_trace": [SPAN], "torch.modules": [net(False)]}

    (found,) = judged("model-in-eval-mode", tables)

    assert found.sentence == "Net trains in evaluation mode"


def test_training_mode_and_a_validation_under_way_are_fine(judged: Judged, steps: Steps) -> None:
    tables = {"python.steps": steps(50), "python.torch_trace": [SPAN], "torch.modules": [net(True)]}
    validates = {**tables, "python.steps": steps(50, evaluation=0.5), "torch.modules": [net(False)]}

    assert judged("model-in-eval-mode", tables) == []
    assert judged("model-in-eval-mode", validates) == []


def test_a_model_without_a_backward_has_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("model-in-eval-mode", {"python.steps": steps(50), "torch.modules": [net(False)]})
