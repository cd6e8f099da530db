"""A model whose evaluations make graphs for nothing."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import Certainty, NotApplicable

from .conftest import Judged, Steps


def model(**others: int) -> dict[str, Any]:
    return {
        "torch.evaluations": [{"module": "Net", "without_gradients": 0, "active": 0, "with_gradients": 4, **others}]
    }


def test_evaluations_with_gradients_are_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("evaluates-with-gradients", model() | {"python.steps": steps(200)})

    assert found.certainty is Certainty.CERTAIN
    assert found.where == "Net"
    assert found.evidence[0].startswith("4 times in 200 steps")


@pytest.mark.parametrize("fine", [{"with_gradients": 0}, {"with_gradients": 1}, {"with_gradients": 190}])
def test_none_a_single_one_and_one_in_each_step_are_fine(judged: Judged, steps: Steps, fine: dict[str, int]) -> None:
    assert judged("evaluates-with-gradients", model(**fine) | {"python.steps": steps(200)}) == []


def test_a_job_that_evaluates_nothing_is_not_judged(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("evaluates-with-gradients", {"python.steps": steps(200)})
