"""Frequency and beginning of a cost, from what is saved in each step."""

from __future__ import annotations

import numpy as np
import pytest

from probe_cli.cluster.delays.costs import Cost, cost

NUM_STEPS, LENGTH_S = 200, 0.05


def cost_of(per_step: np.ndarray) -> Cost:
    return cost([0], per_step, LENGTH_S + per_step, np.arange(NUM_STEPS), ["rank"])


@pytest.mark.parametrize("first", range(8))
def test_what_is_waited_for_in_two_steps_has_the_period_in_which_it_is_done(first: int) -> None:
    """A rank saves at the end of every 8th step: the others wait in the next one, and some of it is in each."""
    chance, per_step = np.random.default_rng(3), np.zeros(NUM_STEPS)
    for at in range(first, NUM_STEPS - 1, 8):
        part = chance.choice([0.1, 0.5, 0.9])
        per_step[at : at + 2] += np.array([part, 1 - part]) * 0.15

    found = cost_of(per_step)

    assert (found.period, found.since) == (8, None)
    assert found.seconds_a_step / found.frequency == pytest.approx(0.15, rel=0.1)


@pytest.mark.parametrize("seed", range(100))
def test_what_comes_now_and_then_has_no_period_and_has_not_begun_where_it_came_first(seed: int) -> None:
    per_step = np.where(np.random.default_rng(seed).random(NUM_STEPS) < 0.15, 0.15, 0.0)

    found = cost_of(per_step)

    assert (found.period, found.since) == (None, None)
    assert found.frequency == pytest.approx(0.15, abs=0.08)


def test_what_comes_now_and_then_from_some_step_on_says_since_when() -> None:
    per_step = np.where(np.random.default_rng(1).random(NUM_STEPS) < 0.3, 0.15, 0.0)
    per_step[:100] = 0.0

    assert cost_of(per_step).since in range(100, 110)
