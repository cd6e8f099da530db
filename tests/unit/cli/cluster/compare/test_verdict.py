"""Verdicts on simulated jobs with every way to be slow, and noise: the rank, the phase and the cost."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from probe_cli.cluster.compare.by import WAYS
from probe_cli.cluster.compare.comparison import Comparison, Verdict
from probe_cli.cluster.compare.facts import Clock, Facts, Who
from probe_cli.cluster.compare.named import named
from probe_cli.cluster.compare.study import Study, study
from probe_cli.cluster.compare.verdict import judge

from .made import CALL, STEP, USUAL, chain, columns, job, rows_between, without_calls
from .test_starved import samples

PHASES = ["data_wait", "forward", "backward", "optimizer", "other"]


def compare(facts: list[Facts], num_steps: int = 200) -> Comparison:
    return WAYS["step"].compare(facts, num_steps)


def verdict_on(facts: list[Facts], num_steps: int = 200) -> Verdict:
    return compare(facts, num_steps).verdict


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 64])
@pytest.mark.parametrize("phase", PHASES)
def test_the_slow_rank_its_phase_and_its_cost_are_named(phase: str, num_ranks: int) -> None:
    facts = job(num_ranks, 100, lambda rank, step: {phase: 0.030} if rank == 1 else {})

    verdict = verdict_on(facts, 60)

    assert (verdict.state, verdict.ranks, verdict.where) == ("stands out", (1,), phase), verdict.sentence
    assert verdict.num_steps == 60
    assert verdict.cost == pytest.approx(0.030, rel=0.15)
    assert verdict.sentence.startswith("rank 1 holds the job up: ")
    assert verdict.exit_code == 5


def test_the_sentence_has_cost_share_interval_and_the_phase_of_both() -> None:
    facts = job(4, 120, lambda rank, step: {"data_wait": 0.206} if rank == 3 else {}, noise=0.001)

    verdict = verdict_on(facts, 100)

    assert verdict.sentence == (
        "rank 3 holds the job up: 84 % (84 to 84 %) of its time, 206 ms a step: its data loading takes 210 ms, its"
        " peers' 4.0 ms"
    )
    assert (verdict.value, verdict.median) == (pytest.approx(0.210, abs=1e-3), pytest.approx(0.004, abs=1e-3))
    assert verdict.share_low is not None
    assert verdict.share_high is not None
    assert verdict.share_low <= verdict.share <= verdict.share_high


def test_in_a_pipeline_what_a_rank_costs_that_is_worth_no_name_is_not_added_to_that_of_another() -> None:
    def slow(rank: int, step: int) -> dict[str, float]:
        saves = rank == 3 and step % 10 == 0
        return {"data_wait": 0.0017} if rank == 0 else {"other": 0.024} if saves else {}

    verdict = verdict_on(chain(220, slow))

    assert (verdict.ranks, verdict.where, verdict.period) == ((3,), "other", 10), verdict.sentence


def test_now_and_then_has_its_period_and_what_it_takes_then() -> None:
    facts = job(4, 220, lambda rank, step: {"other": 0.310} if rank == 2 and step % 10 == 0 else {})

    verdict = verdict_on(facts)

    assert (verdict.ranks, verdict.where, verdict.period) == ((2,), "other", 10)
    assert verdict.cost_each == pytest.approx(0.310, rel=0.05)
    assert re.search(r"in every 10th step, 3(09|10|11) ms each", verdict.sentence), verdict.sentence
    assert verdict.frequency == pytest.approx(0.1)


def test_the_verdict_names_the_step_since_which_it_holds() -> None:
    facts = job(4, 220, lambda rank, step: {"forward": 0.030} if rank == 0 and step >= 120 else {})

    verdict = verdict_on(facts)

    assert verdict.ranks == (0,)
    assert verdict.since == pytest.approx(120, abs=1)
    assert ", since step 1" in verdict.sentence


def test_a_delay_in_every_step_is_told_so_beside_a_long_stall_of_the_same_rank_and_stalls_of_others() -> None:
    def slow(rank: int, step: int) -> dict[str, float]:
        if rank == 1:
            return {"forward": 0.3 if step == 90 else 0.008}
        return {"backward": 0.02} if (step * 7 + rank) % 9 == 0 else {}

    verdict = verdict_on(job(4, 220, slow))

    assert (verdict.ranks, verdict.where) == ((1,), "forward"), verdict.sentence
    assert re.search(r" of its time, [0-9.]+ ms a step: its forward takes [0-9.]+ ms, its peers'", verdict.sentence)


def test_of_many_slow_ranks_each_is_named_and_nobody_else() -> None:
    slow = {rank for rank in range(96) if rank % 12 < 5}
    facts = job(96, 40, lambda rank, step: {"forward": 0.030} if rank in slow else {}, noise=0.2)

    found = compare(facts, 40)

    assert set(found.verdict.ranks) == slow
    assert "ranks 0-4,12-16,24-28,36-40,48-52,60-64,72-76,84-88 hold the job up" in found.verdict.sentence
    several = next(row for row in found.rows if row[found.columns.index("rank")] is None)
    assert several[found.columns.index("ranks")] == "0-4,12-16,24-28,36-40,48-52,60-64,72-76,84-88"


def test_two_slow_ranks_are_both_named() -> None:
    facts = job(8, 120, lambda rank, step: {"forward": 0.030} if rank in (2, 5) else {})

    verdict = verdict_on(facts, 100)

    assert sorted(verdict.ranks) == [2, 5], verdict.sentence
    assert verdict.where == "forward"


def test_a_slow_host_is_named_as_a_host() -> None:
    facts = job(8, 120, lambda rank, step: {"forward": 0.010} if rank >= 4 else {}, hosts=2)

    verdict = verdict_on(facts, 100)

    assert verdict.sentence.startswith("host node1 (ranks 4-7) holds the job up: "), verdict.sentence
    assert (verdict.kind, sorted(verdict.ranks)) == ("host", [4, 5, 6, 7])


def test_a_starved_rank_is_longer_in_all_phases() -> None:
    facts = job(
        4, 120, lambda rank, step: {"forward": 0.008, "backward": 0.016, "data_wait": 0.003} if rank == 1 else {}
    )

    verdict = verdict_on(facts, 100)

    assert (verdict.ranks, verdict.where) == ((1,), "all phases"), verdict.sentence


def test_a_rank_whose_slowness_varies_from_step_to_step_is_named() -> None:
    chance = random.Random(3)
    facts = job(4, 220, lambda rank, step: {"data_wait": chance.expovariate(1 / 0.100)} if rank == 1 else {})

    verdict = verdict_on(facts)

    assert (verdict.ranks, verdict.where) == ((1,), "data_wait")


@pytest.mark.parametrize("num_ranks", [2, 4, 16])
@pytest.mark.parametrize("noise", [0.02, 0.3, 0.8])
def test_no_rank_is_named_for_noise(noise: float, num_ranks: int) -> None:
    for seed in range(20 if num_ranks < 16 else 5):
        verdict = verdict_on(job(num_ranks, 120, noise=noise, seed=seed), 100)

        assert verdict.state in ("nobody", "rotates", "not enough data"), verdict.sentence
        assert verdict.ranks == ()


def test_a_healthy_job_gets_the_all_clear_with_what_would_have_been_seen() -> None:
    verdict = verdict_on(job(4, 220, noise=0.02))

    assert (verdict.state, verdict.exit_code) == ("nobody", 0), verdict.sentence
    assert verdict.sentence.startswith("no rank holds the job up: 4 ranks compared over 200 steps of ")
    assert verdict.smallest_visible is not None
    assert verdict.smallest_visible < 0.05
    assert verdict.sentence.endswith("and what costs 5 % or more would have been seen")


def test_no_actors_are_named_for_noise_beside_a_learner_that_is_never_late() -> None:
    for seed in range(8):
        chance = random.Random(seed)
        plays = [[0.0 if rank == 0 else 0.06 * chance.lognormvariate(0, 0.2) for rank in range(4)] for _ in range(220)]

        verdict = verdict_on(job(4, 220, lambda rank, step, plays=plays: {"other": plays[step][rank]}, seed=seed))

        assert (verdict.state, verdict.ranks) == ("rotates", ()), (seed, verdict.sentence)


@pytest.mark.parametrize("stall", [0.080, 0.0])
def test_on_a_busy_host_the_longest_stalls_tell_whose_they_are(stall: float) -> None:
    for seed in range(8):
        chance = random.Random(seed)
        of_all = [[chance.expovariate(250) + 0.060 * (chance.random() < 0.08) for _ in range(160)] for _ in range(4)]

        def slow(rank: int, step: int, of_all: list[list[float]] = of_all) -> dict[str, float]:
            return {"forward": of_all[rank][step] + stall * (rank == 2 and step % 10 == 3)}

        verdict = verdict_on(job(4, 160, slow, seed=seed), 150)

        assert verdict.ranks == ((2,) if stall else ()), (seed, verdict.sentence)


def test_a_few_stalls_of_a_rank_may_be_chance() -> None:
    facts = job(4, 160, lambda rank, step: {"forward": 1.0} if rank == 2 and step in (31, 80, 122) else {})

    verdict = verdict_on(facts, 150)

    assert (verdict.state, verdict.ranks) == ("not enough data", ())
    assert verdict.sentence.startswith("not enough data: rank 2 may cost "), verdict.sentence
    assert "compare more steps with --steps" in verdict.sentence


def collected(stall: float, noise: float) -> tuple[Study, Verdict]:
    """A job in which one rank's garbage collector ran three times."""
    steps = [31, 80, 122]
    facts = job(4, 160, lambda rank, step: {"forward": stall} if rank == 2 and step in steps else {}, noise=noise)
    found = study(facts, 150)
    pauses = {"ts": facts[2].steps["ended"][steps], "duration": np.full(3, stall)}
    told = {fact.who: replace(samples(fact, 0.0), pauses=pauses if fact is facts[2] else {}) for fact in facts}
    return found, judge(found, named(found, told), told)


def test_the_all_clear_says_what_other_tables_show_of_the_rank_that_costs_most() -> None:
    found, verdict = collected(0.075, 0.02)

    assert 0.025 < found.most_costly.share < 0.05
    assert verdict.state == "nobody", verdict.sentence
    said = r"; rank 2 costs most, \d %; Python's garbage collector takes \d % of its time \(its peers' 0 %\)$"
    assert re.search(said, verdict.sentence), verdict.sentence


def launched_early(work_ms: Sequence[float], step_ms: float = 50.0) -> list[Facts]:
    """Ranks that launch a call as a step begins, work, and stand still until it is over, as the step is."""
    facts = []
    for rank, own in enumerate(work_ms):
        steps, calls = [], []
        for number in range(120):
            began, ended = 0.05 * number, 0.05 * number + step_ms / 1000
            work = own / 1000 * (1 + 0.01 * ((7 * number + rank) % 5))
            phases = {**dict.fromkeys(USUAL, 0.0), "other": ended - began}
            steps.append({"number": number, "ended": ended, "duration": ended - began, **phases, **STEP})
            wait = {"wait": ended - began - work, "phase": "other", "wait_phase": "other", "by_cpp": False}
            calls.append({**CALL, "step": number, "seq": number, "start": began + 0.001, "ended": ended, **wait})
        facts.append(
            Facts(Who(rank, "node0", rank), steps=columns(steps), calls=columns(calls), clock=Clock(0.0, 0.0005, 6))
        )
    return facts


def test_ranks_that_work_while_others_stand_still_for_data_get_no_all_clear() -> None:
    verdict = compare(launched_early([40, 30, 40, 30]), 120).verdict

    assert verdict.state == "not enough data"
    assert verdict.sentence.startswith("not enough data: 2 ranks (0,2) work longer than the others by 20 % of the time")
    assert compare(launched_early([30, 30, 31, 30]), 120).verdict.state == "nobody"


@pytest.mark.parametrize(("stall", "noise"), [(0.2, 0.1), (0.12, 0.02)])
def test_few_stalls_that_are_most_of_a_small_loss_may_be_chance(stall: float, noise: float) -> None:
    found, verdict = collected(stall, noise)

    assert 0.05 < found.most_costly.share < 0.10
    assert (verdict.state, verdict.ranks) == ("not enough data", ()), verdict.sentence
    assert verdict.sentence.startswith("not enough data: rank 2 may cost "), verdict.sentence
    assert re.search(r"chance; Python's garbage collector takes \d+ % of its time \(its peers' 0 %\)", verdict.sentence)


def test_stalls_that_hit_anybody_rotate() -> None:
    for seed in range(10):
        stalls = [[random.Random(f"{seed} {rank} {step}").random() < 0.2 for step in range(120)] for rank in range(4)]
        facts = job(4, 120, lambda rank, step, stalls=stalls: {"forward": 0.2 * stalls[rank][step]}, seed=seed)

        verdict = verdict_on(facts, 100)

        assert (verdict.state, verdict.ranks, verdict.exit_code) == ("rotates", (), 6), verdict.sentence
        assert verdict.where == "forward"
        assert verdict.share is not None
        assert verdict.share > 0.5


def test_a_fiftieth_of_a_step_is_not_worth_a_name() -> None:
    facts = job(4, 120, lambda rank, step: {"forward": 0.0007} if rank == 0 else {}, noise=0.001)

    assert verdict_on(facts, 100).state == "nobody"


def test_clocks_that_are_apart_are_put_right() -> None:
    clocks = {"node0": 0.0, "node1": 7200.3}
    facts = job(4, 120, lambda rank, step: {"backward": 0.030} if rank == 0 else {}, hosts=2, clocks=clocks)

    verdict = verdict_on(facts, 100)

    assert verdict.ranks == (0,)
    assert verdict.sentence.startswith("rank 0 (on node0) holds the job up: ")


@pytest.mark.parametrize("known", [0.5, None])
def test_clocks_that_are_not_known_well_enough_are_no_reason_for_an_all_clear(known: float | None) -> None:
    facts = job(4, 120, lambda rank, step: {"data_wait": 0.030} if rank == 0 else {}, hosts=2)
    facts = [
        replace(fact, clock=None if known is None or fact.clock is None else replace(fact.clock, uncertainty=known))
        for fact in facts
    ]

    verdict = verdict_on(facts, 100)

    assert verdict.state in ("stands out", "not enough data"), verdict.sentence
    assert set(verdict.ranks) <= {0}


def test_steps_that_ranks_count_from_different_starts_are_aligned() -> None:
    facts = job(4, 120, lambda rank, step: {"forward": 0.030} if rank == 3 else {}, first_step=lambda rank: 5 * rank)

    verdict = verdict_on(facts, 100)

    assert (verdict.ranks, verdict.where, verdict.num_steps) == ((3,), "forward", 100)


def test_a_rank_with_too_few_steps_is_left_out_and_named() -> None:
    facts = job(4, 100, lambda rank, step: {"forward": 0.030} if rank == 1 else {})
    facts[3] = replace(facts[3], steps=rows_between(facts[3].steps, -4))
    facts[2] = replace(facts[2], steps={}, calls={})

    found = compare(facts, 60)

    assert found.verdict.ranks == (1,)
    assert "rank 3 is not compared: it has recorded 4 steps" in found.notes
    assert "rank 2 is not compared: it has recorded no step" in found.notes


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (job(1, 50), "it takes two ranks to compare, and 1 answered"),
        (job(4, 0), "no rank has recorded a step yet"),
        (job(4, 10), "the ranks have 8 steps in common, 10 are needed"),
        (without_calls(job(2, 50)), "0 of 2 ranks told of a collective, send or receive"),
    ],
)
def test_too_little_is_not_taken_for_health(facts: list[Facts], why: str) -> None:
    verdict = verdict_on(facts, 50)

    assert (verdict.state, verdict.exit_code) == ("not enough data", 1)
    assert verdict.sentence.startswith("not enough data: ")
    assert why in verdict.sentence
    assert verdict.ranks == ()


def test_a_few_steps_are_enough_when_all_of_them_agree() -> None:
    facts = job(4, 14, lambda rank, step: {"data_wait": 0.030} if rank == 1 else {})

    assert verdict_on(facts).ranks == (1,)


def test_a_wait_that_python_tells_is_taken_off_the_phase_it_was_in() -> None:
    facts = job(4, 120, lambda rank, step: {"other": 0.030} if rank == 1 else {})
    told = []
    for fact in facts:  # as if Python had called, and waited, in forward
        wait = fact.calls["ended"] - fact.calls["start"]
        calls = {**fact.calls, "wait": wait, "by_cpp": np.zeros(len(wait), dtype=bool)}
        calls["wait_phase"] = np.array(["forward"] * len(wait), dtype=object)
        moved = {"forward": fact.steps["forward"] + wait, "backward": fact.steps["backward"] - wait}
        told.append(replace(fact, calls=calls, steps={**fact.steps, **moved}))

    verdict = verdict_on(told, 100)

    assert (verdict.ranks, verdict.where) == ((1,), "other")
    assert verdict.median == pytest.approx(0.002, abs=1e-3)


def test_rows_have_cost_share_and_interval_the_biggest_first() -> None:
    found = compare(job(4, 120, lambda rank, step: {"backward": 0.030} if rank == 2 else {}), 100)

    first, *others = (dict(zip(found.columns, row, strict=True)) for row in found.rows)

    assert (first["who"], first["ranks"], first["phase"]) == ("rank 2", "2", "backward")
    assert first["cost"] == pytest.approx(0.030, rel=0.1)
    assert first["low"] <= first["share"] <= first["high"]
    assert first["waited"] == pytest.approx(0.0, abs=1e-3)
    assert all(row["cost"] < 0.002 for row in others)
    assert all(row["waited"] == pytest.approx(0.030, rel=0.1) for row in others)


def test_a_rank_whose_calls_are_not_known_is_left_out_and_not_charged_with_its_waits() -> None:
    facts = job(4, 120, lambda rank, step: {"data_wait": 0.030} if rank == 1 else {})
    facts[3] = replace(facts[3], calls=rows_between(facts[3].calls, 0, 3))

    found = compare(facts, 100)

    assert set(found.verdict.ranks) <= {1}, found.verdict.sentence
    assert found.verdict.ranks or found.verdict.state == "not enough data"
    assert "rank 3 is not compared: its collectives in these steps are not known" in found.notes


def test_a_few_long_pauses_of_one_rank_are_named_though_their_interval_is_wide() -> None:
    chance = random.Random(5)
    facts = job(4, 220, lambda rank, step: {"forward": 0.4} if rank == 2 and chance.random() < 0.1 else {})

    verdict = verdict_on(facts)

    assert (verdict.ranks, verdict.where) == ((2,), "forward"), verdict.sentence


def test_steps_in_which_probe_itself_made_a_rank_slow_are_not_compared() -> None:
    facts = job(3, 160, lambda rank, step: {"forward": 0.02} if rank == 1 and 80 <= step < 120 else {})
    assert compare(facts, 100).verdict.ranks == (1,)

    facts[1].steps["traced"][80:120] = True  # type: ignore[index]

    comparison = compare(facts, 100)
    assert comparison.verdict.state == "nobody", comparison.verdict.sentence
    (note,) = comparison.notes
    assert note.startswith("40 steps of rank 1 are not compared: Probe traced it in them")


def test_steps_that_probe_traced_on_all_ranks_at_once_are_not_bridged() -> None:
    facts = job(3, 160, lambda rank, step: {"forward": 0.02} if 40 <= step < 80 else {})
    for fact in facts:
        fact.steps["traced"][40:80] = True  # type: ignore[index]

    verdict = compare(facts, 160).verdict

    assert (verdict.state, verdict.num_steps) == ("nobody", pytest.approx(80, abs=2)), verdict.sentence


def test_too_few_steps_beside_those_that_probe_traced_are_no_verdict() -> None:
    facts = job(3, 120, lambda rank, step: {"forward": 0.02} if rank == 1 and step >= 5 else {})
    facts[1].steps["traced"][5:] = True  # type: ignore[index]

    comparison = compare(facts, 100)

    assert comparison.verdict.state == "not enough data", comparison.verdict.sentence
    assert "compare again" in comparison.notes[0]
