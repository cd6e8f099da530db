"""A frozen model that training calls in training mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rules import teacher_in_training_mode

from .conftest import Judged, Steps
from .looking import Answers, looked

CALLED = {"module": "ConvNet", "without_gradients": 200, "active": 200, "with_gradients": 0, "trainable": False}
MODULES = [
    {"module": "Distiller.student", "class": "ConvNet", "training": True, "trainable": 9, "parameters": 9},
    {"module": "Distiller.teacher", "class": "ConvNet", "training": True, "trainable": 0, "parameters": 9},
]
SUSPECTED = Finding("it is", Certainty.SUSPECTED, where="Distiller.teacher", ranks=(0,))


def tables(steps: Steps, num: int = 100, called: Mapping[str, Any] = CALLED, **columns: Any) -> dict[str, Any]:
    rows = steps(num, **{"evaluation": 0.01, **columns})
    return {"python.steps": rows, "torch.evaluations": [called], "torch.modules": MODULES}


def test_a_frozen_model_of_each_step_is_suspected(judged: Judged, steps: Steps) -> None:
    (found,) = judged("teacher-in-training-mode", tables(steps))

    assert (found.certainty, found.where) == (Certainty.SUSPECTED, "Distiller.teacher")


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"called": {**CALLED, "active": 0}}, id="in evaluation mode"),
        pytest.param({"evaluation": lambda step: 0.01 * (step % 10 == 0)}, id="in a few steps"),
    ],
)
def test_one_in_evaluation_mode_or_of_few_steps_is_fine(judged: Judged, steps: Steps, columns: dict[str, Any]) -> None:
    assert judged("teacher-in-training-mode", tables(steps, **columns)) == []


def test_what_is_trained_or_seen_for_a_few_steps_is_not_judged(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("teacher-in-training-mode", tables(steps, called={**CALLED, "trainable": True}))
    with pytest.raises(NoEvidence):
        judged("teacher-in-training-mode", tables(steps, num=5))


@pytest.mark.parametrize(("follows", "certainties"), [(False, [Certainty.LIKELY]), (True, [])])
def test_one_that_follows_the_trained_model_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, follows: bool, certainties: list[Certainty]
) -> None:
    readings = iter(range(100))

    async def values_of(job: Answers, rank: int, module: str) -> dict[str, float]:
        assert module == "Distiller.teacher"
        return {"weight": float(next(readings)) if follows else 1.0}

    monkeypatch.setattr(teacher_in_training_mode, "values_of", values_of)
    monkeypatch.setattr(teacher_in_training_mode, "PAUSE_S", 0.01)
    monkeypatch.setattr(teacher_in_training_mode, "WATCH_S", 0.1)

    found = looked("teacher-in-training-mode", Answers([{"step": 10}], [{"step": 40}]), [SUSPECTED])
    assert [one.certainty for one in found] == certainties
    if not follows:
        with pytest.raises(NoEvidence):
            looked("teacher-in-training-mode", Answers([{"step": 10}]), [SUSPECTED])
