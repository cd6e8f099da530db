"""The governor lowers sampling until it is within the budget, and no further than it has to."""

from __future__ import annotations

import random

import pytest

from probe_agent.recorder.config import Settings
from probe_agent.recorder.governor import Governor
from probe_agent.recorder.step import Step


def run(governor: Governor, settings: Settings, *, usual: float, extra: float, num_steps: int = 4_000) -> None:
    """Steps that take `usual` seconds, sampled ones `extra` longer, with some noise."""
    noise = random.Random(1)
    for number in range(num_steps):
        step = Step()
        step.sampled = bool(governor.every) and number % governor.every == 0
        step.duration = (usual + (extra if step.sampled else 0)) * noise.uniform(0.98, 1.02)
        governor.note(step)


@pytest.fixture
def settings() -> Settings:
    return Settings({})


def test_costly_sampling_is_lowered_to_the_budget(settings: Settings) -> None:
    governor = Governor(settings)
    for _ in range(5):
        run(governor, settings, usual=1e-3, extra=0.6e-3)
        verdict = governor.review(37)

    assert governor.every == 80  # 0.6 / 80 is 0.75 %, 0.6 / 40 is 1.5 %
    assert verdict is not None
    assert verdict.extra == pytest.approx(0.6e-3, rel=0.05)
    assert verdict.share == pytest.approx(0.6 / 80, rel=0.05)
    assert 0 < verdict.uncertainty < 0.1e-3


def test_what_all_else_costs_comes_out_of_the_budget_first(settings: Settings) -> None:
    every = {}
    for others in (0.0, 0.003, 0.02):
        governor = Governor(settings)
        for _ in range(8):
            run(governor, settings, usual=1e-3, extra=0.6e-3)
            governor.review(37, others)
        every[others] = governor.every

    assert every == {0.0: 80, 0.003: 160, 0.02: 640}  # 0.75 %, 0.375 % of 0.7, 0.09 % of 0.1


def test_cheap_sampling_stays_as_the_user_set_it(settings: Settings) -> None:
    governor = Governor(settings)
    run(governor, settings, usual=10e-3, extra=0.6e-3)
    governor.review(37)

    assert governor.every == 20


def test_it_comes_back_when_steps_get_longer_but_not_above_what_the_user_set(settings: Settings) -> None:
    governor = Governor(settings)
    run(governor, settings, usual=1e-3, extra=2e-3)
    governor.review(37)
    lowered = governor.every
    for _ in range(8):
        run(governor, settings, usual=1.0, extra=2e-3, num_steps=25_000)
        governor.review(37)

    assert lowered > 100
    assert governor.every == 20


def test_where_every_step_is_sampled_the_cost_is_estimated_and_then_measured(settings: Settings) -> None:
    settings["trace.every"] = 1
    governor = Governor(settings)
    for _ in range(6):
        run(governor, settings, usual=1e-3, extra=0.2e-3)
        governor.review(37)

    assert governor.every == 32


def test_no_budget_is_no_limit_and_no_sampling_needs_none(settings: Settings) -> None:
    settings["trace.budget"] = 0.0
    unlimited = Governor(settings)
    run(unlimited, settings, usual=1e-3, extra=1e-3)
    verdict, every = unlimited.review(37), unlimited.every
    settings["trace.every"] = 0
    off = Governor(settings)
    run(off, settings, usual=1e-3, extra=1e-3)

    assert every == 20
    assert verdict is not None
    assert verdict.share == pytest.approx(0.05, rel=0.1)
    assert off.review(0) is None


def test_too_few_steps_say_nothing(settings: Settings) -> None:
    governor = Governor(settings)
    run(governor, settings, usual=1e-3, extra=5e-3, num_steps=60)

    assert governor.review(37) is None
    assert governor.every == 20
