"""Generated jobs and delays: hypothesis plants them, the simulator knows their cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from probe_cli.cluster.delays.analysis import analyse

from . import simulator
from .simulator import Delay, Job, Own

STEPS = 48
JOBS: dict[str, Callable[[int], Job]] = {
    "ddp": lambda hosts: simulator.ddp(num_hosts=hosts),
    "ddp and metrics": lambda hosts: simulator.ddp(metrics=True, num_hosts=hosts),
    "ddp of two": lambda hosts: simulator.ddp(2, num_hosts=hosts),
    "tp x dp": lambda hosts: simulator.tp_dp(num_hosts=hosts),
    "wide tp x dp": lambda hosts: simulator.tp_dp(4, 2, num_layers=2, num_hosts=hosts),
    "gpipe x dp": lambda hosts: simulator.pipeline(3, 3, dp=2, num_hosts=hosts),
    "1f1b x dp": lambda hosts: simulator.pipeline(3, 3, dp=2, schedule="1f1b", num_hosts=hosts),
    "buffered 1f1b x dp": lambda hosts: simulator.pipeline(3, 3, dp=2, schedule="1f1b", buffered=True, num_hosts=hosts),
    "fsdp": lambda hosts: simulator.fsdp(num_hosts=hosts),
    "hierarchical": lambda hosts: simulator.hierarchical(2, 2),
}
QUICK = settings(
    max_examples=18,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@dataclass(frozen=True)
class Case:
    """A job, a delay, and the shape of its rows."""

    job: Job
    rank: int
    delay: Delay
    noise: float
    seed: int
    told: dict[str, object]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    job = JOBS[draw(st.sampled_from(sorted(JOBS)))](draw(st.sampled_from([1, 2])))
    rank = draw(st.integers(0, job.num_ranks - 1))
    place = draw(st.sampled_from(sorted({action.place for action in job.programs[rank] if isinstance(action, Own)})))
    when = draw(
        st.sampled_from(["every step", "every third", "every tenth", "at random", "from a step on", "in a burst"])
    )
    seconds = draw(st.sampled_from([0.006, 0.012, 0.04])) * {"every tenth": 8, "every third": 2}.get(when, 1)
    chance = np.random.default_rng(draw(st.integers(0, 9)))
    steps = {
        "every step": np.ones(STEPS, dtype=bool),
        "every third": np.arange(STEPS) % 3 == 1,
        "every tenth": np.arange(STEPS) % 10 == 4,
        "at random": chance.random(STEPS) < 0.3,
        "from a step on": np.arange(STEPS) >= 20,
        "in a burst": (np.arange(STEPS) >= 15) & (np.arange(STEPS) < 30),
    }[when]
    hosts = job.num_hosts
    told: dict[str, object] = {
        "clock_offsets": [draw(st.floats(-2, 2)) for _ in range(hosts)],
        "clock_errors": [draw(st.floats(-5e-5, 5e-5)) for _ in range(hosts)],
        "uncertainty": 5e-5,
        "first_steps": [draw(st.sampled_from([0, 3, 1000])) for _ in range(job.num_ranks)],
        "first_rows": [draw(st.integers(0, 3)) for _ in range(job.num_ranks)],
        "num_late": draw(st.integers(0, 3)),
    }
    delay: Delay = lambda who, step, at: seconds if who == rank and at == place and steps[step] else 0.0  # noqa: E731
    return Case(job, rank, delay, draw(st.sampled_from([0.0, 0.03, 0.08])), draw(st.integers(0, 99)), told)


@QUICK
@given(cases())
def test_the_planted_rank_comes_first_with_what_it_costs(case: Case) -> None:
    with_it = simulator.run(case.job, STEPS, noise=case.noise, seed=case.seed, delay=case.delay)
    without = simulator.run(case.job, STEPS, noise=case.noise, seed=case.seed)
    told = simulator.told(with_it, **case.told)  # type: ignore[arg-type]

    found = analyse(told, num_steps=STEPS)

    assert len(found.steps) >= STEPS - 8
    # Step numbers are those of one of the ranks: which ones these are, their lengths tell.
    at = min(range(STEPS - len(found.steps) + 1), key=lambda at: _distance(with_it.lengths, found.lengths, at))
    assert _distance(with_it.lengths, found.lengths, at) < 1e-3
    inside = slice(at, at + len(found.steps))
    true = (with_it.lengths - without.lengths)[inside].mean()
    assume(true >= 0.1 * with_it.lengths[inside].mean())
    assert found.candidates[0].ranks == (case.rank,)
    assert found.candidates[0].seconds_a_step == pytest.approx(true, rel=0.2)
    whole = (found.own + found.waited + found.transfer).sum(axis=1)
    assert whole == pytest.approx(np.full(len(whole), found.time_s), abs=0.05 * found.time_s + 0.5)
    charged = found.charged.sum() + found.charged_to_transfer_s + found.unknown_s
    assert charged == pytest.approx(found.waited.sum(), abs=1e-6)


def _distance(lengths: np.ndarray, found: np.ndarray, at: int) -> float:
    return float(np.abs(lengths[at : at + len(found)] - found).max())


@QUICK
@given(st.sampled_from(sorted(JOBS)), st.sampled_from([0.0, 0.05, 0.2, 0.4]), st.integers(0, 999))
def test_no_rank_of_a_healthy_job_costs_anything(name: str, noise: float, seed: int) -> None:
    ran = simulator.run(JOBS[name](2), STEPS, noise=noise, seed=seed)

    found = analyse(simulator.told(ran), num_steps=STEPS)

    assert all(cost.low < 0.05 for cost in found.candidates)


@settings(QUICK, max_examples=6)
@given(cases(), st.sampled_from([0.1, 7.0]))
def test_time_scales_and_ranks_are_but_names(case: Case, scale: float) -> None:
    ran = simulator.run(case.job, STEPS, noise=case.noise, seed=case.seed, delay=case.delay)
    order = np.random.default_rng(case.seed).permutation(case.job.num_ranks).tolist()

    found = analyse(simulator.told(ran), num_steps=STEPS)
    scaled = analyse(simulator.told(ran, scale=scale), num_steps=STEPS)
    permuted = analyse(simulator.told(ran, order=order), num_steps=STEPS)

    assert scaled.lengths == pytest.approx(found.lengths * scale, rel=1e-3)
    assert scaled.charged.sum() == pytest.approx(found.charged.sum() * scale, rel=0.02, abs=0.01)
    best = found.candidates[0]
    assert scaled.candidates[0].share == pytest.approx(best.share, abs=0.01)
    assert permuted.candidates[0].share == pytest.approx(best.share, abs=1e-3)
    if best.share > 0.1:
        assert scaled.candidates[0].ranks == best.ranks
        assert sorted(order[rank] for rank in permuted.candidates[0].ranks) == list(best.ranks)
    assert permuted.charged == pytest.approx(found.charged[order], abs=1e-4)


def test_ranks_are_permuted_with_the_rows() -> None:
    ran = simulator.run(simulator.ddp(), STEPS)

    found = analyse(simulator.told(ran, order=[2, 0, 3, 1]), num_steps=STEPS)

    assert [who.rank for who in found.who] == [2, 0, 3, 1]
