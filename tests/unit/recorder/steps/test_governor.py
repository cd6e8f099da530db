"""The governor lowers sampling until it is within the budget, and no further than it has to."""

from __future__ import annotations

import random

import pytest

from probe_agent.recorder.config import Settings
from probe_agent.recorder.steps.governor import Governor, turn_of
from probe_agent.recorder.steps.step import Step

USUAL_S = 1e-3


def _bursts(number: int, noise: random.Random) -> float:
    return 3.0 if number // 170 % 3 == 1 else 1.0


#: What a step takes on a host and in a job of all kinds, without us; by the step's number, times the usual.
NOISE = {
    "quiet": lambda number, noise: 1.0,
    "slower and slower": lambda number, noise: 1.0 + number / 50_000,
    "bursts of a neighbour's load": _bursts,
    "two kinds of steps by chance": lambda number, noise: noise.choice((1.0, 1.0, 2.0)),
    "every other step is another kind": lambda number, noise: 1.0 + number % 2,
    "long tails": lambda number, noise: noise.lognormvariate(0.0, 0.6),
    "a log line every 10 steps": lambda number, noise: 1.8 if number % 10 == 0 else 1.0,
    "an evaluation every 20 steps": lambda number, noise: 6.0 if number % 20 == 0 else 1.0,
    "a log line every 40 steps": lambda number, noise: 2.0 if number % 40 == 0 else 1.0,
    "a checkpoint every 100 steps": lambda number, noise: 20.0 if number % 100 == 0 else 1.0,
}


def run(
    governor: Governor,
    settings: Settings,
    *,
    usual: float,
    extra: float,
    num_steps: int = 4_000,
    first: int = 0,
    kind: str = "quiet",
) -> None:
    """Steps that take `usual` seconds, sampled ones `extra` longer, with some noise."""
    noise = random.Random(first + 1)
    every = int(settings["trace.every"])
    for number in range(first, first + num_steps):
        step = Step()
        turn = turn_of(number, every) if every else None
        if turn is not None:
            step.is_scheduled, step.sampled, step.is_deep_turn = True, governor.takes(turn), turn % 5 == 0
        usual_now = usual * NOISE[kind](number, noise)
        step.duration = (usual_now + (extra if step.sampled else 0)) * noise.uniform(0.98, 1.02)
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


def test_the_cost_of_other_sources_comes_out_of_the_budget_first(settings: Settings) -> None:
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
    for _ in range(4):
        run(governor, settings, usual=1e-3, extra=2e-3)
        governor.review(37)
    lowered = governor.every
    for _ in range(12):
        run(governor, settings, usual=1.0, extra=2e-3, num_steps=25_000)
        governor.review(37)

    assert lowered > 100
    assert governor.every == 20


@pytest.mark.parametrize("kind", NOISE)
def test_noise_is_not_taken_for_cost(settings: Settings, kind: str) -> None:
    governor, factors = Governor(settings), []
    for number in range(15):
        run(governor, settings, usual=USUAL_S, extra=0.0, first=number * 4_000, kind=kind)
        governor.review(37)
        factors.append(governor.factor)

    assert max(factors) <= 4
    assert sorted(factors)[len(factors) // 2] == 1


@pytest.mark.parametrize("kind", NOISE)
def test_a_cost_far_over_the_budget_is_seen_through_noise(settings: Settings, kind: str) -> None:
    governor = Governor(settings)
    for number in range(20):
        run(governor, settings, usual=USUAL_S, extra=3 * USUAL_S, first=number * 4_000, kind=kind)
        governor.review(37)

    assert governor.factor >= 8


def test_sampling_comes_back_when_a_cost_is_over(settings: Settings) -> None:
    governor = Governor(settings)
    for number in range(5):
        run(governor, settings, usual=USUAL_S, extra=USUAL_S, first=number * 4_000)
        governor.review(37)
    lowered = governor.factor
    for number in range(5, 30):
        run(governor, settings, usual=USUAL_S, extra=0.0, first=number * 4_000, kind="long tails")
        governor.review(37)

    assert lowered >= 4
    assert governor.factor == 1


def test_ranks_that_lower_it_differently_sample_common_steps(settings: Settings) -> None:
    taken = {}
    for lowered in (1, 2, 8):
        governor = Governor(settings)
        governor._lowered = lowered
        taken[lowered] = {index for index in range(4_000) if governor.takes(index)}

    assert taken[8] < taken[2] < taken[1]
    assert len(taken[8]) == pytest.approx(500, rel=0.15)


@pytest.mark.parametrize("by", ["environment", "change"])
def test_a_setting_made_by_hand_holds_until_it_is_reset(by: str) -> None:
    settings = Settings({"PROBE_TRACE_EVERY": "10"} if by == "environment" else {})
    if by == "change":
        settings.change({"trace.every": "10"})
    governor = Governor(settings)
    for number in range(5):
        run(governor, settings, usual=USUAL_S, extra=USUAL_S, first=number * 4_000)
        governor.review(37)
    held, why = governor.every, governor.explain()
    settings.change({"trace.every": "default"})
    for number in range(5, 10):
        run(governor, settings, usual=USUAL_S, extra=USUAL_S, first=number * 4_000)
        governor.review(37)

    assert held == 10
    assert why[0] == "10"
    assert "set by hand, so it is kept; it costs" in why[1]
    assert "more than trace.budget" in why[1]
    assert governor.every >= 80
    in_force, why_not = governor.explain()
    assert in_force == str(governor.every)
    assert "one step in 20 would cost more than trace.budget" in why_not


def test_if_every_step_is_sampled_the_cost_is_estimated(settings: Settings) -> None:
    settings.change({"trace.every": "1"})
    governor = Governor(settings)
    run(governor, settings, usual=USUAL_S, extra=0.2e-3)
    verdict = governor.review(37)

    assert governor.every == 1
    assert verdict is not None
    assert verdict.extra == pytest.approx(37 * 4e-6)
    assert "set by hand" in governor.explain()[1]


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


@pytest.mark.parametrize("every", [1, 2, 20, 50])
def test_one_step_of_each_turn_is_scheduled_and_turns_have_no_period(every: int) -> None:
    turns = {number: turn_of(number, every) for number in range(400 * every)}
    scheduled = [number for number, turn in turns.items() if turn is not None]

    assert [turns[number] for number in scheduled] == list(range(400)) == [number // every for number in scheduled]
    for period in (2, 4, 5, 10, 20):
        at = [sum(number % period == one for number in scheduled) / 400 for one in range(period)]
        assert max(at) < (2.0 if every > 1 else 1.01) / period, period


@pytest.mark.parametrize("stride", [3, 20, 33])
def test_a_count_that_passes_over_steps_has_the_next_one_scheduled(stride: int) -> None:
    passed = {turn for number in range(0, 20_000, stride) if (turn := turn_of(number, 20, stride)) is not None}

    assert len(passed) >= 0.9 * min(1_000, 20_000 / stride)
