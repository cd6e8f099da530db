"""The steps that are compared by default: those of 12 s where a few ranks take short ones."""

from __future__ import annotations

import pytest

from probe_cli.cluster.compare.questions import num_steps_of


@pytest.mark.parametrize(
    ("step_s", "num_ranks", "num_steps"),
    [(0.1, 4, 200), (0.02, 4, 600), (0.001, 4, 1_000), (0.02, 17, 200), (None, 4, 200), (0.0, 4, 200)],
)
def test_short_steps_of_a_few_ranks_are_compared_over_twelve_seconds(
    step_s: float | None, num_ranks: int, num_steps: int
) -> None:
    assert num_steps_of(step_s, num_ranks) == num_steps
