"""Generation that takes most of the time."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps


def test_rollouts_that_take_most_of_the_time_are_named(judged: Judged, steps: Steps) -> None:
    rows = steps(40, rollout=lambda s: s // 4 + 1, generation=lambda s: 3.0 if s % 4 == 0 else 0.0,
                 duration=lambda s: 3.1 if s % 4 == 0 else 0.1)  # fmt: skip

    (found,) = judged("generation-dominates", {"python.steps": rows})

    assert found.sentence.startswith("generation takes 88 %")
    assert "10 rollouts of 3.0 s" in found.evidence[0]


def test_short_rollouts_are_fine(judged: Judged, steps: Steps) -> None:
    rows = steps(40, rollout=lambda s: s // 4 + 1, generation=lambda s: 0.05 if s % 4 == 0 else 0.0)

    assert judged("generation-dominates", {"python.steps": rows}) == []


def test_without_generation_there_is_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("generation-dominates", {"python.steps": steps(40)})


def test_calls_without_gradients_that_take_most_of_the_time_are_named_for_what_they_are(
    judged: Judged, steps: Steps
) -> None:
    """The episodes of a game, collected by a function of any name."""
    rows = steps(80, evaluation=lambda s: 0.9 if s % 4 == 0 else 0.0, duration=lambda s: 1.0 if s % 4 == 0 else 0.02)

    (found,) = judged("generation-dominates", {"python.steps": rows})

    assert found.sentence.startswith("calls without gradients take 85 % of the time")
    seldom = steps(80, evaluation=lambda s: 0.9 if s == 40 else 0.0, duration=lambda s: 1.0 if s == 40 else 0.001)
    teacher = steps(80, evaluation=0.05, duration=0.1)
    assert judged("generation-dominates", {"python.steps": seldom}) == []
    assert judged("generation-dominates", {"python.steps": teacher}) == []
