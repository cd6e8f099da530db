"""The model trains in evaluation mode."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import Certainty, NoEvidence, NotApplicable
from probe_cli.diagnose.rules import model_in_eval_mode

from .conftest import Judged, Steps
from .looking import Answers, looked

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


def test_the_model_is_the_same_one_wherever_it_is_found(judged: Judged, steps: Steps) -> None:
    """In forward() it is `self`, elsewhere a local of main()."""
    found = [
        judged("model-in-eval-mode", {
            "python.steps": steps(50), "python.torch_trace": [SPAN],
            "torch.modules": [{**module, "place": place} for module in net(False)],
        })
        for place in ("local `self` of forward() at net.py:9", "local `net` of main() at train.py:41")
    ]  # fmt: skip

    assert len({one.where for (one,) in found}) == 1


LEFT = {"module": "Net", "training": False, "evaluation": 0.0}
EVALUATES = {**LEFT, "evaluation": 0.5}


@pytest.mark.parametrize(
    ("answers", "is_left"),
    [
        ([{**LEFT, "step": 60}], True),
        ([{**EVALUATES, "step": 60}, {**LEFT, "step": 64}], True),
        # A pool that is scored between two rounds of training was once taken for a model that trains so.
        ([{**LEFT, "step": 49}, {**EVALUATES, "training": True, "step": 50}], False),
        ([{**EVALUATES, "step": 60}], False),  # rollouts in every step
    ],
)
def test_a_later_step_tells_a_validation_that_is_under_way(
    judged: Judged, steps: Steps, monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, object]], is_left: bool
) -> None:
    monkeypatch.setattr(model_in_eval_mode, "PAUSE_S", 0.0)
    tables = {"python.steps": steps(50), "python.torch_trace": [SPAN], "torch.modules": net(False)}
    found = judged("model-in-eval-mode", tables)

    told = looked("model-in-eval-mode", Answers(*([answer] for answer in answers)), found)

    assert [one.certainty for one in told] == ([Certainty.LIKELY] if is_left else [])


@pytest.mark.parametrize("answers", [Answers([{**LEFT, "step": 49}]), Answers([])], ids=["no end", "no answer"])
def test_a_validation_whose_end_is_not_seen_is_not_judged(
    judged: Judged, steps: Steps, monkeypatch: pytest.MonkeyPatch, answers: Answers
) -> None:
    monkeypatch.setattr(model_in_eval_mode, "PAUSE_S", 0.0)
    tables = {"python.steps": steps(50), "python.torch_trace": [SPAN], "torch.modules": net(False)}
    found = judged("model-in-eval-mode", tables)

    with pytest.raises(NoEvidence, match="ask again later"):
        looked("model-in-eval-mode", answers, found)


def test_training_mode_is_fine(judged: Judged, steps: Steps) -> None:
    tables = {"python.steps": steps(50), "python.torch_trace": [SPAN], "torch.modules": net(True)}

    assert judged("model-in-eval-mode", tables) == []


def test_where_the_mode_makes_no_difference_nothing_is_said(judged: Judged, steps: Steps) -> None:
    tables = {"python.steps": steps(50), "python.torch_trace": [SPAN]}

    assert judged("model-in-eval-mode", {**tables, "torch.modules": net(False, "ReLU")}) == []
    assert judged("model-in-eval-mode", {**tables, "torch.modules": net(False, trainable=0)}) == [], "a frozen body"


def test_a_model_without_a_backward_has_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("model-in-eval-mode", {"python.steps": steps(50), "torch.modules": net(False)})
