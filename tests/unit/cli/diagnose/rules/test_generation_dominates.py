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
