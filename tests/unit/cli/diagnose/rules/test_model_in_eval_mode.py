"""The model trains in evaluation mode."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import Certainty, NotApplicable

from .conftest import Judged, Steps
from .looking import Told, looked

SPAN = {"module": "Net", "stage": "backward", "step": 1, "ts": "2026-01-01"}


def net(training: bool, layer: str = "Dropout", trainable: int = 10) -> list[dict[str, object]]:
    """A model of a body, with a layer in it, and a head."""
    common = {"training": training, "place": "model"}
    return [
        {"module": "Net", "class": "Net", "depth": 0, "trainable": 15, **common},
        {"module": "Net.body", "class": "Sequential", "depth": 1, "trainable": trainable, **common},
        {"module": "Net.body.1", "class": layer, "depth": 2, "trainable": 0, **common},
        {"module": "Net.head", "class": "Linear", "depth": 1, "trainable": 5, **common},
    ]


@pytest.mark.parametrize("layer", ["Dropout", "BatchNorm2d", "StochasticDropPath"])
def test_a_model_left_in_evaluation_mode_is_named(judged: Judged, steps: Steps, layer: str) -> None:
    tables = {"python.steps": steps(50), "python.torch_trace": [SPAN], "torch.modules": net(False, layer)}

    (found,) = judged("model-in-eval-mode", tables)

    assert (found.sentence, found.certainty) == ("Net trains in evaluation mode", Certainty.SUSPECTED)


@pytest.mark.parametrize("stays", [True, False])
def test_a_second_look_tells_a_validation_that_is_under_way(judged: Judged, steps: Steps, stays: bool) -> None:
    """A pool that is scored between two rounds of training was once taken for a model that trains so."""
    tables = {"python.steps": steps(50), "python.torch_trace": [SPAN], "torch.modules": net(False)}
    found = judged("model-in-eval-mode", tables)

    told = looked("model-in-eval-mode", Told(1, **{"rank 0, mode of model": stays}), found)

    assert [one.certainty for one in told] == ([Certainty.LIKELY] if stays else [])


def test_training_mode_and_a_validation_under_way_are_fine(judged: Judged, steps: Steps) -> None:
    tables = {"python.steps": steps(50), "python.torch_trace": [SPAN], "torch.modules": net(True)}
    validates = {**tables, "python.steps": steps(50, evaluation=0.5), "torch.modules": net(False)}

    assert judged("model-in-eval-mode", tables) == []
    assert judged("model-in-eval-mode", validates) == []


def test_where_the_mode_makes_no_difference_nothing_is_said(judged: Judged, steps: Steps) -> None:
    tables = {"python.steps": steps(50), "python.torch_trace": [SPAN]}

    assert judged("model-in-eval-mode", {**tables, "torch.modules": net(False, "ReLU")}) == []
    assert judged("model-in-eval-mode", {**tables, "torch.modules": net(False, trainable=0)}) == [], "a frozen body"


def test_a_model_without_a_backward_has_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("model-in-eval-mode", {"python.steps": steps(50), "torch.modules": net(False)})
