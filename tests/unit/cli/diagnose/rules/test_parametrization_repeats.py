"""A parametrized weight that is computed many times in one forward."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps

WEIGHT = "Net.cell.rec.parametrizations.weight.0"


def traced(num: int, *, calls: int = 16, models: int = 1, took: float = 0.002) -> list[dict[str, Any]]:
    """The calls of `num` sampled steps."""
    rows = []
    for step in range(num):
        usual = {"step": step, "phase": "train", "stage": "forward"}
        rows += [{**usual, "module": "Net", "duration": 0.05}] * models
        rows += [{**usual, "module": WEIGHT, "duration": took}] * calls
        rows += [{**usual, "module": WEIGHT, "stage": "backward", "duration": took}] * calls
    return rows


def test_the_weight_is_named_with_what_all_but_the_first_call_take(judged: Judged, steps: Steps) -> None:
    (found,) = judged("parametrization-repeats", {"python.steps": steps(50), "python.torch_trace": traced(5)})

    assert found.sentence == "a parametrized weight is computed 16 times in each forward: 60 % of the time"
    assert found.where == "Net.cell.rec.weight"
    assert found.cost_s == pytest.approx(0.06)


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param({"calls": 1}, id="once"),
        pytest.param({"calls": 16, "models": 16}, id="once in each of many calls of the model"),
        pytest.param({"took": 0.0001}, id="it takes little"),
    ],
)
def test_what_costs_little_or_cannot_be_shared_is_fine(judged: Judged, steps: Steps, calls: dict[str, Any]) -> None:
    tables = {"python.steps": steps(50), "python.torch_trace": traced(5, **calls)}

    assert judged("parametrization-repeats", tables) == []


def test_without_sampled_calls_nothing_is_said(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("parametrization-repeats", {"python.steps": steps(50)})
    with pytest.raises(NoEvidence):
        judged("parametrization-repeats", {"python.steps": steps(50), "python.torch_trace": traced(2)})
