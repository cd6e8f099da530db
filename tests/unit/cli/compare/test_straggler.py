"""Who is slow, and with what: jobs that never ran, with every way to be slow, and noise."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from probe_cli.cluster.compare.facts import Call, Clock, Facts, Step, Who
from probe_cli.cluster.compare.phases import worked
from probe_cli.cluster.compare.straggler import find

from .made import job, without_calls

PHASES = ["data_wait", "forward", "backward", "optimizer", "other"]


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 64])
@pytest.mark.parametrize("phase", PHASES)
def test_the_slow_rank_and_its_phase_are_named(phase: str, num_ranks: int) -> None:
    facts = job(num_ranks, 100, lambda rank, step: {phase: 0.030} if rank == 1 else {})

    verdict = find(facts, 60).verdict

    assert verdict.state == "stands out"
    assert verdict.ranks == (1,)
    assert verdict.where == phase
    assert verdict.num_steps == 60
    assert verdict.sentence.startswith("rank 1 is slow: ")


def test_the_sentence_has_its_time_that_of_the_others_and_both_waits() -> None:
    facts = job(4, 100, lambda rank, step: {"data_wait": 0.206} if rank == 3 else {}, noise=0.001)

    verdict = find(facts, 100).verdict

    assert verdict.sentence.startswith("rank 3 is slow: its data loading takes 210 ms a step, the median rank's 4.0 ms")
    assert verdict.sentence.endswith("it waits 0 ms a step in collectives, the others 206 ms")
    assert (verdict.value, verdict.median) == (pytest.approx(0.210, abs=1e-3), pytest.approx(0.004, abs=1e-3))
    assert (verdict.wait, verdict.others_wait) == (0.0, pytest.approx(0.206, abs=1e-3))


@pytest.mark.parametrize("phase", ["data_wait", "forward", "optimizer", "other"])
def test_without_collectives_the_phases_tell(phase: str) -> None:
    facts = without_calls(job(4, 100, lambda rank, step: {phase: 0.030} if rank == 2 else {}))

    found = find(facts, 100)

    assert found.verdict.ranks == (2,)
    assert found.verdict.where == phase
    assert found.verdict.evidence in ("phases", "data")
    assert "the phases of the steps are compared" in found.notes[0]


def test_two_slow_ranks_are_both_named() -> None:
    facts = job(8, 100, lambda rank, step: {"forward": 0.030} if rank in (2, 5) else {})

    verdict = find(facts, 100).verdict

    assert sorted(verdict.ranks) == [2, 5]
    assert "rank 2 is slow: its forward" in verdict.sentence
    assert "rank 5 is slow: its forward" in verdict.sentence


def test_a_rank_whose_slowness_varies_from_step_to_step_is_named() -> None:
    chance = random.Random(3)
    facts = job(4, 200, lambda rank, step: {"data_wait": chance.expovariate(1 / 0.100)} if rank == 1 else {})

    verdict = find(facts, 200).verdict

    assert (verdict.ranks, verdict.where) == ((1,), "data_wait")


@pytest.mark.parametrize("num_ranks", [2, 4, 16])
@pytest.mark.parametrize("noise", [0.02, 0.3, 0.8])
def test_nobody_is_named_for_noise(noise: float, num_ranks: int) -> None:
    for seed in range(20 if num_ranks < 16 else 5):
        facts = job(num_ranks, 40, noise=noise, seed=seed)
        for told in (facts, without_calls(facts)):
            verdict = find(told, 40).verdict

            assert verdict.state == "nobody", verdict.sentence
            assert "no rank stands out" in verdict.sentence
            assert "40 steps" in verdict.sentence


def test_nobody_is_named_for_stalls_that_hit_anybody() -> None:
    for seed in range(20):
        stalls = [[random.Random(f"{seed} {rank} {step}").random() < 0.2 for step in range(60)] for rank in range(4)]
        facts = job(4, 60, lambda rank, step, stalls=stalls: {"forward": 0.2 * stalls[rank][step]}, seed=seed)

        found = find(facts, 60)

        assert found.verdict.state == "nobody"
        assert found.notes == ()


def test_a_rank_that_is_slow_now_and_then_is_not_named_but_told_of() -> None:
    facts = job(4, 100, lambda rank, step: {"other": 1.0} if rank == 0 and step % 10 == 0 else {})

    found = find(facts, 100)

    assert found.verdict.state == "nobody"
    (note,) = found.notes
    assert note.startswith("now and then rank 0 holds the others up: in 10 of 100 steps, by 1.0 s (median), 72 %")


def test_a_twentieth_of_a_step_is_not_worth_a_name() -> None:
    facts = job(4, 100, lambda rank, step: {"forward": 0.0015} if rank == 0 else {}, noise=0.001)

    assert find(facts, 100).verdict.state == "nobody"


def test_ranks_that_do_not_wait_for_each_other_are_compared_by_their_steps() -> None:
    facts = job(4, 100, lambda rank, step: {"backward": 0.030} if rank == 2 else {}, in_step=False)

    verdict = find(facts, 100).verdict

    assert (verdict.ranks, verdict.where, verdict.evidence) == ((2,), "backward", "durations")


def test_what_python_waits_in_collectives_is_not_counted_as_work() -> None:
    facts = without_calls(job(4, 100))
    slow = {step.number for step in facts[0].steps}
    waiting = []
    for fact in facts:  # rank 1 comes last to a collective that Python calls; the others wait for it in `other`
        extra = 0.0 if fact.who.rank == 1 else 0.050
        steps = tuple(
            replace(
                step,
                duration=step.duration + 0.050,
                other=step.other + extra,
                data_wait=step.data_wait + (0.050 if fact.who.rank == 1 else 0.0),
            )
            for step in fact.steps
        )
        calls = tuple(Call(number, f"of {fact.who.rank}", number, "all_reduce", 0.0, extra) for number in slow)
        waiting.append(replace(fact, steps=steps, calls=calls))

    verdict = find(waiting, 100).verdict

    assert (verdict.ranks, verdict.where) == ((1,), "data_wait")


def test_waits_are_taken_off_the_phase_they_were_in() -> None:
    step = Step(7, 100.0, 0.100, 0.010, 0.030, 0.040, 0.001, 0.019, True)
    calls = [
        Call(7, "0", 1, "all_gather", 99.93, 0.020),  # forward, which began at 99.929
        Call(7, "0", 2, "reduce_scatter", 99.97, 0.030),  # backward, which began at 99.959
        Call(7, "0", 3, "barrier", 99.905, 0.015),  # before both
        Call(8, "0", 4, "barrier", 100.005, 0.015),
    ]

    (own,) = worked(Facts(Who(0, "a", 1), steps=(step,), calls=tuple(calls)))

    assert (own.forward, own.backward, own.other) == pytest.approx((0.010, 0.010, 0.004))
    assert (own.data_wait, own.optimizer, own.duration) == (0.010, 0.001, 0.100)


def test_clocks_that_are_apart_are_put_right() -> None:
    clocks = {"node0": 0.0, "node1": 7200.3}
    facts = job(4, 100, lambda rank, step: {"backward": 0.030} if rank == 0 else {}, hosts=2, clocks=clocks)

    verdict = find(facts, 100).verdict

    assert (verdict.ranks, verdict.evidence) == ((0,), "collectives")
    assert "rank 0 (on node0) is slow" in verdict.sentence


@pytest.mark.parametrize("uncertainty", [0.5, None])
def test_clocks_that_are_not_known_well_enough_are_not_believed(uncertainty: float | None) -> None:
    facts = job(4, 100, lambda rank, step: {"data_wait": 0.030} if rank == 0 else {}, hosts=2)
    clock = None if uncertainty is None else Clock(0.0, uncertainty, 6)
    facts = [replace(fact, clock=clock) for fact in facts]

    found = find(facts, 100)

    assert (found.verdict.ranks, found.verdict.where, found.verdict.evidence) == ((0,), "data_wait", "phases")
    assert "the hosts' clocks may be" in found.notes[0]
    assert found.verdict.wait is None  # nor is it known who waited
    assert "it waits" not in found.verdict.sentence


def test_steps_that_ranks_count_from_different_starts_are_aligned() -> None:
    facts = job(4, 100, lambda rank, step: {"forward": 0.030} if rank == 3 else {}, first_step=lambda rank: 5 * rank)

    found = find(facts, 100)

    assert (found.verdict.ranks, found.verdict.where, found.verdict.num_steps) == ((3,), "forward", 100)


def test_a_rank_with_too_few_steps_is_left_out_and_named() -> None:
    facts = job(4, 100, lambda rank, step: {"forward": 0.030} if rank == 1 else {})
    facts[3] = replace(facts[3], steps=facts[3].steps[-4:])
    facts[2] = replace(facts[2], steps=())

    found = find(facts, 60)

    assert found.verdict.ranks == (1,)
    assert "rank 3 is not compared: it has 4 of these steps" in found.notes
    assert "rank 2 is not compared: it has recorded no step" in found.notes


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (job(1, 50), "it takes two ranks to compare, and 1 answered"),
        (job(4, 0), "no rank has recorded a step yet"),
        (job(4, 6), "the ranks have 6 steps in common, 10 are needed"),
        (
            [replace(fact, calls=()) for fact in job(2, 50, first_step=lambda rank: 1000 * rank)],
            "the ranks have 0 steps in common",
        ),
    ],
)
def test_too_little_is_not_taken_for_health(facts: list[Facts], why: str) -> None:
    verdict = find(facts, 50).verdict

    assert verdict.state == "not enough data"
    assert verdict.sentence.startswith("not enough data: ")
    assert why in verdict.sentence
    assert verdict.ranks == ()


def test_a_few_steps_are_enough_when_all_of_them_agree() -> None:
    facts = job(4, 12, lambda rank, step: {"data_wait": 0.030} if rank == 1 else {})

    assert find(facts, 200).verdict.ranks == (1,)


def test_steps_whose_collectives_are_not_known_of_all_ranks_are_not_mixed_in() -> None:
    facts = job(4, 100, lambda rank, step: {"backward": 0.030} if rank == 1 else {})
    facts = [replace(fact, calls=fact.calls[: 100 - 8 * fact.who.rank]) for fact in facts]

    found = find(facts, 50)

    assert found.verdict.ranks == (1,)
    assert found.steps[-1] == 75  # the last that rank 3 has
    assert found.verdict.others_wait == pytest.approx(0.031, abs=0.003)


def test_collectives_that_are_as_of_long_ago_say_nothing_about_now() -> None:
    facts = job(4, 3000, lambda rank, step: {"data_wait": 0.030} if rank == 1 else {})
    facts = [replace(fact, calls=fact.calls[:500]) for fact in facts]

    found = find(facts, 50)

    assert found.steps[-1] == 2999
    assert (found.verdict.ranks, found.verdict.evidence) == ((1,), "phases")
