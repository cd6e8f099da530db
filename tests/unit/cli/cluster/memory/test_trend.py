"""Growth of made series: leaks are found, and what healthy jobs do is not taken for one."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from probe_cli.cluster.memory.trend import Sample, State, Trend, trend, weighed

INTERVAL_S, STEPS = 0.25, 5
Series = Callable[[random.Random, int], list[float]]


def judged(values: list[float]) -> Trend:
    return trend([Sample(at * INTERVAL_S, at * STEPS, mib) for at, mib in enumerate(values)])


def flat(draw: random.Random, num: int) -> list[float]:
    return [500 + draw.gauss(0, 1) for _ in range(num)]


def constant(draw: random.Random, num: int) -> list[float]:
    return [500.0] * num


def wandering(draw: random.Random, num: int) -> list[float]:
    values = [500.0]
    while len(values) < num:
        values.append(500 + 0.95 * (values[-1] - 500) + draw.gauss(0, 5))
    return values


def saw(draw: random.Random, num: int) -> list[float]:
    period, phase = draw.uniform(4, num / 4), draw.random()
    return [500 + 100 * ((at / period + phase) % 1) for at in range(num)]


def jumps(draw: random.Random, num: int) -> list[float]:
    times = [draw.randrange(num) for _ in range(draw.randrange(1, 4))]
    return [500.0 + sum(50 for time in times if time <= at) for at in range(num)]


def warm_up(draw: random.Random, num: int) -> list[float]:
    slowness = num / draw.uniform(4, 40)
    return [500 + 300 * (1 - math.exp(-at / slowness)) + draw.gauss(0, 0.3) for at in range(num)]


def one_rise_and_fall(draw: random.Random, num: int) -> list[float]:
    begin = draw.randrange(num // 2)
    return [500 + (200 if begin <= at < begin + num // 4 else 0) for at in range(num)]


@pytest.mark.parametrize("num", [60, 240])
@pytest.mark.parametrize("series", [flat, constant, wandering, saw, jumps, warm_up, one_rise_and_fall])
def test_no_growth_is_claimed_of_a_healthy_series(series: Series, num: int) -> None:
    states = Counter(judged(series(random.Random(seed), num)).state for seed in range(12))

    assert set(states) <= {State.FLAT, State.LEVELLING}, states


@pytest.mark.parametrize(
    ("asked_for", "headroom", "state"),
    [
        (lambda at: 2000.0, 4000.0, State.LEVELLING),
        (lambda at: 2000.0, None, State.LEVELLING),
        (lambda at: 9000.0, 4000.0, State.GROWS),  # the memory ends before it is filled
        (lambda at: 700.0 + 4 * at, 4000.0, State.GROWS),
        (lambda at: 0.0, 4000.0, State.GROWS),  # a kernel that does not tell
        (lambda at: 600.0 + 1400 * (at > 10), 4000.0, State.LEVELLING),  # asked for after the first samples
    ],
)
def test_memory_that_was_asked_for_before_and_is_filled_does_not_grow(
    asked_for: Callable[[int], float], headroom: float | None, state: State
) -> None:
    taken = {at: 500.0 + 4.0 * at for at in range(240)}
    samples = [Sample(at * INTERVAL_S, at * STEPS, mib, asked_for(at) - mib) for at, mib in taken.items()]

    assert trend(samples).state is State.GROWS
    assert weighed(trend(samples), headroom).state is state


def test_random_walks_hardly_ever_grow() -> None:
    grown = 0
    for seed in range(80):
        draw, values = random.Random(seed), [500.0]
        while len(values) < 120:
            values.append(values[-1] + draw.gauss(0, 1))
        grown += judged(values).state is State.GROWS

    assert grown <= 2


@pytest.mark.parametrize(
    ("leak", "noise", "arena"), [(0.1, 0.1, 0.0), (1.0, 3.0, 0.0), (0.2, 0.0, 1.0), (5.0, 20.0, 0.0)]
)
def test_a_leak_is_found_with_its_slope(leak: float, noise: float, arena: float) -> None:
    for seed in range(6):
        draw = random.Random(seed)
        values = [
            500 + (math.floor(leak * at / arena) * arena if arena else leak * at) + draw.gauss(0, noise)
            for at in range(240)
        ]

        found = judged(values)

        assert found.state is State.GROWS
        assert found.per_step == pytest.approx(leak / STEPS, rel=0.1)
        assert found.low <= leak / INTERVAL_S <= found.high or found.high - found.low < 0.2 * leak / INTERVAL_S
        assert found.p <= 0.001


def test_a_leak_below_a_saw_is_found() -> None:
    found = judged([500 + 20 * (at / 6 % 1) + 0.5 * at for at in range(240)])

    assert found.state is State.GROWS
    assert found.per_second == pytest.approx(2.0, rel=0.1)


def test_a_leak_that_began_late_is_found() -> None:
    found = judged([500 + max(0, at - 190) * 1.0 + at % 2 for at in range(240)])

    assert found.state is State.GROWS
    assert found.per_second == pytest.approx(4.0, rel=0.1)


def test_the_slope_of_a_job_that_is_slow_at_times_lies_within_its_bounds() -> None:
    values = [500.0]
    while len(values) < 240:
        values.append(values[-1] + (1.0 if 72 <= len(values) < 204 else 0.5))

    found = judged(values)

    assert found.state is State.GROWS
    assert found.low <= found.per_second <= found.high


def test_few_samples_and_a_short_time_are_said() -> None:
    assert judged([]).state is State.UNKNOWN
    assert judged([500.0 + at for at in range(14)]).state is State.UNKNOWN
    assert trend([Sample(at * 0.01, at, 500.0 + at) for at in range(200)]).state is State.UNKNOWN


def test_without_steps_the_slope_is_by_time() -> None:
    found = trend([Sample(at, None, 500.0 + at) for at in range(60)])

    assert (found.state, found.per_step, found.num_steps) == (State.GROWS, None, 0)
    assert found.per_second == pytest.approx(1.0)


def growing(per_second: float, span_s: float) -> Trend:
    return Trend(State.GROWS, 100, span_s=span_s, per_second=per_second, last=2000.0)


@pytest.mark.parametrize(
    ("per_second", "span_s", "headroom", "state"),
    [
        (10.0, 24.0, 10_000.0, State.GROWS),  # full in 17 minutes
        (10.0, 15.0, 10_000.0, State.UNKNOWN),
        (0.3, 24.0, 10_000.0, State.UNKNOWN),  # full in 9 hours
        (0.3, 600.0, 10_000.0, State.GROWS),
        (0.005, 6000.0, 10_000.0, State.FLAT),  # full in 23 days
        (0.5, 500.0, None, State.UNKNOWN),
        (0.5, 600.0, None, State.GROWS),
        (5.0, 100.0, None, State.GROWS),  # a third more
    ],
)
def test_growth_is_claimed_when_it_matters_and_was_seen_long_enough(
    per_second: float, span_s: float, headroom: float | None, state: State
) -> None:
    found = weighed(growing(per_second, span_s), headroom)

    assert found.state is state
    assert (found.wait_s is not None) == (state is State.UNKNOWN)
