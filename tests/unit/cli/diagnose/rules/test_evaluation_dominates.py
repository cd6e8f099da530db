"""Calls without gradients that take most of the time."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps


def test_calls_without_gradients_that_take_most_of_the_time_are_named_for_what_they_are(
    judged: Judged, steps: Steps
) -> None:
    """The episodes of a game, collected by a function of any name."""
    rows = steps(80, evaluation=lambda s: 0.9 if s % 4 == 0 else 0.0, duration=lambda s: 1.0 if s % 4 == 0 else 0.02)

    (found,) = judged("evaluation-dominates", {"python.steps": rows})

    assert found.sentence.startswith("calls without gradients take 85 % of the time")


def test_few_such_calls_and_a_teacher_are_fine(judged: Judged, steps: Steps) -> None:
    seldom = steps(80, evaluation=lambda s: 0.9 if s == 40 else 0.0, duration=lambda s: 1.0 if s == 40 else 0.001)
    teacher = steps(80, evaluation=0.05, duration=0.1)
    assert judged("evaluation-dominates", {"python.steps": seldom}) == []
    assert judged("evaluation-dominates", {"python.steps": teacher}) == []


def test_without_such_calls_and_where_they_generate_there_is_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    rollouts = steps(80, evaluation=0.9, generation=0.5, duration=1.5)

    for rows in (steps(80), rollouts):
        with pytest.raises(NotApplicable):
            judged("evaluation-dominates", {"python.steps": rows})
