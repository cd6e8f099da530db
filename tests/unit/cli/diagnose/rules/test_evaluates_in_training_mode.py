"""A model whose dropout is active in its evaluations."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps

EVERY = 20


def model(**others: Any) -> dict[str, Any]:
    row = {"module": "Net", "without_gradients": 5, "active": 5, "with_gradients": 0, **others}
    return {"torch.evaluations": [row]}


def evaluating(steps: Steps, lasts: float = 0.5, every: int = EVERY) -> dict[str, Any]:
    def evaluation(step: int) -> float:
        return lasts if step % every == 0 else 0.0

    return {"python.steps": steps(100, evaluation=evaluation, duration=lambda step: 0.1 + evaluation(step))}


def test_a_validation_with_dropout_is_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("evaluates-in-training-mode", model() | evaluating(steps))

    assert found.where == "Net"
    assert found.evidence[0].startswith("5 of 5 blocks without gradients")
    assert found.evidence[1] == "5 of 100 steps evaluated, step 80 the last one"


@pytest.mark.parametrize("fine", [{"active": 0}, {"active": 1}])
def test_evaluation_mode_and_a_single_look_are_fine(judged: Judged, steps: Steps, fine: dict[str, int]) -> None:
    assert judged("evaluates-in-training-mode", model(**fine) | evaluating(steps)) == []


@pytest.mark.parametrize("usual", [{"every": 1}, {"lasts": 0.04}])
def test_targets_in_each_step_and_a_few_samples_are_fine(judged: Judged, steps: Steps, usual: dict[str, Any]) -> None:
    assert judged("evaluates-in-training-mode", model() | evaluating(steps, **usual)) == []


def test_a_job_that_evaluates_nothing_or_not_yet_is_not_judged(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("evaluates-in-training-mode", evaluating(steps))
    with pytest.raises(NotApplicable):
        judged("evaluates-in-training-mode", model(without_gradients=0, with_gradients=3) | evaluating(steps))
    with pytest.raises(NoEvidence):
        judged("evaluates-in-training-mode", model() | {"python.steps": steps(100, evaluation=0.0)})
