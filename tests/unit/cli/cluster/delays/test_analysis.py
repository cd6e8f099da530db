"""Planted delays and their cost, against the same job simulated without them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
import pytest

from probe_cli.cluster.delays.analysis import Analysis, analyse

from . import simulator
from .simulator import Delay, Job, Ran

STEPS = 60


def late(ranks: Collection[int], place: str, seconds: float, when: Callable[[int], bool] = lambda step: True) -> Delay:
    """Slow these ranks down at places whose names begin with `place`."""
    return lambda rank, step, at: seconds if rank in ranks and at.startswith(place) and when(step) else 0.0


def analysed(
    job: Job, delay: Delay, *, steps: int = STEPS, noise: float = 0.05, seed: int = 1
) -> tuple[Analysis, float]:
    """Return the analysis, and the true cost of the delay per step."""
    with_it = simulator.run(job, steps, noise=noise, seed=seed, delay=delay)
    without = simulator.run(job, steps, noise=noise, seed=seed)
    found = analyse(simulator.told(with_it), num_steps=steps)
    return found, _cost_in(found, with_it, without)


def _cost_in(found: Analysis, with_it: Ran, without: Ran) -> float:
    steps = found.steps - int(found.steps[0]) + 1  # the first one is cut off
    return float((with_it.lengths - without.lengths)[steps].mean())


def check_sums(found: Analysis) -> None:
    whole = found.own + found.waited + found.transfer
    assert whole.sum(axis=1) == pytest.approx(np.full(len(found.who), found.time_s), rel=0.05)
    charged = found.charged.sum() + found.charged_to_transfer_s + found.unknown_s
    assert charged == pytest.approx(found.waited.sum(), abs=1e-6)
    assert sum(charge.seconds for charge in found.charges) == pytest.approx(found.charged.sum(), rel=1e-3, abs=1e-6)


PLANTED: dict[str, tuple[Job, Delay, Sequence[int]]] = {
    "ddp, loader": (simulator.ddp(), late({2}, "data", 0.01), [2]),
    "ddp, a loader that is less late than a bucket takes": (simulator.ddp(), late({2}, "data", 0.0017), [2]),
    "calls of C++ that are waited for at once": (simulator.functional(), late({2}, "layer", 0.0017), [2]),
    "the same in every fifth step": (
        simulator.functional(),
        late({2}, "layer", 0.006, lambda step: step % 5 == 0),
        [2],
    ),
    "ddp, between two buckets": (simulator.ddp(), late({1}, "backward 1", 0.01), [1]),
    "ddp, before the last bucket": (simulator.ddp(), late({0}, "backward 2", 0.005), [0]),
    "ddp, optimizer": (simulator.ddp(metrics=True), late({3}, "optimizer", 0.01), [3]),
    "ddp of two": (simulator.ddp(2), late({1}, "forward", 0.01), [1]),
    "two at once": (simulator.ddp(), late({1, 3}, "data", 0.01), [1, 3]),
    "one behind another": (
        simulator.ddp(),
        lambda rank, step, place: {1: 0.02, 3: 0.01}.get(rank, 0.0) if place == "data" else 0.0,
        [1, 3],
    ),
    "a host of two": (simulator.ddp(8, num_hosts=2), late({4, 5, 6, 7}, "forward", 0.01), [4, 5, 6, 7]),
    "tp layers": (simulator.tp_dp(), late({0}, "layer", 0.015), [0]),
    "before dp": (simulator.tp_dp(), late({3}, "before dp", 0.015), [3]),
    "one tp layer": (simulator.tp_dp(), late({2}, "layer 1", 0.01), [2]),
    "a tp group": (simulator.tp_dp(2, 4), late({2, 3}, "layer", 0.005), [2, 3]),
    "gpipe": (simulator.pipeline(), late({0}, "backward", 0.005), [0]),
    "gpipe, first stage": (simulator.pipeline(), late({0}, "forward", 0.005), [0]),
    "1f1b, last stage": (simulator.pipeline(schedule="1f1b"), late({3}, "forward", 0.005), [3]),
    "1f1b": (simulator.pipeline(schedule="1f1b"), late({1}, "forward", 0.005), [1]),
    "last stage": (simulator.pipeline(), late({3}, "backward", 0.005), [3]),
    "buffered": (simulator.pipeline(buffered=True, schedule="1f1b"), late({2}, "backward", 0.005), [2]),
    "a stage of two": (simulator.pipeline(dp=2, schedule="1f1b"), late({4, 5}, "forward", 0.005), [4, 5]),
    "one rank of a stage": (simulator.pipeline(dp=2, schedule="1f1b"), late({5}, "forward", 0.005), [5]),
    "fsdp, forward": (simulator.fsdp(), late({1}, "forward 0", 0.01), [1]),
    "fsdp, backward": (simulator.fsdp(), late({2}, "backward 1", 0.01), [2]),
    "local sgd": (simulator.local_sgd(), late({2}, "data", 0.003), [2]),
    "hierarchical": (simulator.hierarchical(), late({5}, "backward", 0.01), [5]),
    "hierarchical, a host": (simulator.hierarchical(), late({4, 5, 6, 7}, "backward", 0.01), [4, 5, 6, 7]),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_delay_is_named_with_what_it_costs(name: str) -> None:
    job, delay, ranks = PLANTED[name]

    found, true = analysed(job, delay)

    best = found.candidates[0]
    assert list(best.ranks) == ranks
    assert best.seconds_a_step == pytest.approx(true, rel=0.2)
    assert best.low > 0.05
    assert found.covered == 1.0
    check_sums(found)


def test_what_a_rank_takes_too_long_is_found_in_the_steps_before_those_that_wait_for_it() -> None:
    found, _ = analysed(simulator.local_sgd(every=10), late({2}, "data", 0.003), steps=100)

    cost = found.cost_of([2])
    assert cost.period == 10
    assert found.taken_by([2]) == pytest.approx(np.full(len(found.steps), 0.003), rel=0.3)


def test_a_long_stall_beside_a_delay_in_every_step_does_not_hide_how_often_it_costs() -> None:
    def stalled(rank: int, step: int, place: str) -> float:
        return (0.3 if step == 40 else 0.005) if rank == 2 and place == "data" else 0.0

    found, _ = analysed(simulator.ddp(), stalled, steps=100, noise=0.01)

    assert found.cost_of([2]).frequency > 0.9


HEALTHY = {
    "ddp": simulator.ddp(),
    "ddp of two": simulator.ddp(2),
    "ddp of three": simulator.ddp(3),
    "tp x dp": simulator.tp_dp(),
    "gpipe": simulator.pipeline(),
    "1f1b x dp": simulator.pipeline(dp=2, schedule="1f1b"),
    "fsdp": simulator.fsdp(),
    "local sgd": simulator.local_sgd(),
    "hierarchical": simulator.hierarchical(),
}


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("name", HEALTHY)
def test_no_rank_of_a_healthy_job_costs_anything(name: str, noise: float) -> None:
    found, _ = analysed(HEALTHY[name], simulator.no_delay, noise=noise)

    assert all(cost.low < 0.05 for cost in found.candidates)
    check_sums(found)


@pytest.mark.parametrize("name", HEALTHY)
def test_time_that_all_ranks_take_alike_costs_nothing(name: str) -> None:
    def everybody(rank: int, step: int, place: str) -> float:
        return 0.0 if place == "leader" else 0.003

    found, _ = analysed(HEALTHY[name], everybody, noise=0.0)

    assert found.total().share < 0.03
    assert all(cost.share < 0.02 for cost in found.candidates)


def test_a_delay_hidden_by_a_pipeline_bubble_costs_next_to_nothing() -> None:
    found, true = analysed(simulator.pipeline(), late({2}, "data", 0.008))

    assert abs(true) < 1e-4
    assert all(cost.share < 0.01 for cost in found.candidates)


def test_every_tenth_step_is_found_with_its_period() -> None:
    found, true = analysed(simulator.ddp(), late({1}, "optimizer", 0.3, lambda step: step % 10 == 3), steps=100)

    best = found.candidates[0]
    assert best.ranks == (1,)
    assert best.period == 10
    assert best.frequency == pytest.approx(0.1, abs=0.02)
    assert best.seconds_a_step == pytest.approx(true, rel=0.2)
    assert best.low > 0.4
    assert str(found.charges[0].slot) == "after the last collective"


def test_a_delay_that_begins_later_says_since_when() -> None:
    found, _ = analysed(simulator.tp_dp(), late({2}, "layer", 0.005, lambda step: step >= 40), steps=100)

    assert found.candidates[0].ranks == (2,)
    assert found.candidates[0].since == 40
    assert found.candidates[0].period is None


def test_a_delay_that_moves_to_another_rank_is_of_both_and_the_second_says_since_when() -> None:
    def moves(rank: int, step: int, place: str) -> float:
        return 0.01 if place == "data" and rank == (1 if step < 50 else 3) else 0.0

    found, true = analysed(simulator.ddp(), moves, steps=100)

    assert found.candidates[0].ranks == (1, 3)
    assert found.candidates[0].seconds_a_step == pytest.approx(true, rel=0.2)
    assert found.cost_of([3]).since == 50
    assert found.cost_of([1]).since is None


def test_pauses_that_hit_any_rank_name_none_and_give_the_total_cost() -> None:
    hit = np.random.default_rng(5).integers(0, 4, 200)

    def pauses(rank: int, step: int, place: str) -> float:
        return 0.02 if place == "forward" and hit[step] == rank else 0.0

    found, _ = analysed(simulator.ddp(), pauses, steps=200)

    assert found.total().low > 0.3
    assert all(cost.low < 0.05 for cost in found.candidates if len(cost.ranks) == 1)


def test_steps_of_which_rows_are_missing_are_left_out() -> None:
    ran = simulator.run(simulator.tp_dp(), 80, noise=0.05, delay=late({2}, "layer", 0.01))
    told = simulator.told(ran)
    lost = (told[1].calls["step"] >= 10) & (told[1].calls["step"] < 30)
    told[1] = replace(told[1], calls={name: column[~lost] for name, column in told[1].calls.items()})

    found = analyse(told, num_steps=80)

    assert (found.steps[0], len(found.steps)) == (30, 49)
    assert found.covered == 1.0
    assert found.candidates[0].ranks == (2,)
