"""Ranks that are late because they wait for a CPU: the host is named, unless the rank has CPUs of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from probe_cli.cluster.compare.comparison import Verdict
from probe_cli.cluster.compare.evidence import beside
from probe_cli.cluster.compare.facts import Facts
from probe_cli.cluster.compare.named import named
from probe_cli.cluster.compare.study import study
from probe_cli.cluster.compare.verdict import judge

from .made import job

#: What a rank that gets too little of a CPU takes longer in a step of 41 ms.
LATE = {"data_wait": 0.003, "forward": 0.008, "backward": 0.016}


def samples(
    fact: Facts, delay: float, *, cpu: float = 0.5, cpus: str = "0-1", nice: float = 0.0, period: float = 1.0
) -> Facts:
    """Return a rank whose training thread waits for a CPU, and has one, for such parts of the time."""
    ended = np.arange(fact.steps["ended"][0] - 5, fact.steps["ended"][-1] + 5, period)
    each = np.ones(len(ended)) * period
    columns = {"ts": ended, "period": each, "cpu_training": cpu * each, "run_delay": delay * each}
    columns |= {"forced_switches": 100 * each, "major_faults": 0 * each, "nice": np.full(len(ended), nice)}
    return replace(fact, samples={**columns, "cpus": np.array([cpus] * len(ended), dtype=object)})


def verdict_on(facts: Sequence[Facts]) -> Verdict:
    found, told = study(facts, 100), {fact.who: fact for fact in facts}
    return judge(found, named(found, told), told)


def late(*ranks: int) -> Callable[[int, int], dict[str, float]]:
    return lambda rank, step: LATE if rank in ranks else {}


def test_a_rank_that_waits_for_the_cpus_that_all_share_is_not_named() -> None:
    facts = [samples(fact, 0.40 if rank == 2 else 0.05) for rank, fact in enumerate(job(4, 120, late(2)))]

    verdict = verdict_on(facts)

    assert (verdict.state, verdict.exit_code, verdict.ranks) == ("busy host", 6, ()), verdict.sentence
    assert (verdict.kind, verdict.where) == ("host", "node0")
    assert verdict.sentence.startswith(
        "host node0 is busy: rank 2 waits for a CPU 40 % of the time, peers with the same CPUs 5 %, which costs"
    ), verdict.sentence
    assert verdict.share == pytest.approx(0.40, abs=0.05)


@pytest.mark.parametrize("own", [{"cpus": "3"}, {"nice": 10.0}])
def test_a_rank_with_cpus_or_a_priority_of_its_own_is_named_with_that(own: dict[str, object]) -> None:
    facts = job(4, 120, late(2))
    facts = [samples(fact, 0.40, **own) if rank == 2 else samples(fact, 0.05) for rank, fact in enumerate(facts)]

    verdict = verdict_on(facts)
    told = beside(facts[2], facts[:2], *study(facts, 100).span(facts[2].who), starved=True)

    assert (verdict.state, verdict.ranks) == ("stands out", (2,)), verdict.sentence
    assert told.sentences == ("it waits for a CPU 40 % of the time (its peers 5 %)",)
    assert told.fields["run_delay"] == (pytest.approx(0.40), pytest.approx(0.05))


@pytest.mark.parametrize(("mine", "theirs", "said"), [(0.30, 0.25, False), (0.30, 0.05, True)])
def test_that_other_threads_wait_for_a_cpu_is_said_where_those_of_the_peers_do_not(
    mine: float, theirs: float, said: bool
) -> None:
    facts = [samples(fact, 0.01) for fact in job(3, 120, late(2))]
    facts = [
        replace(
            fact, samples={**fact.samples, "run_delay_others": (mine if rank == 2 else theirs) * fact.samples["period"]}
        )
        for rank, fact in enumerate(facts)
    ]

    told = beside(facts[2], facts[:2], *study(facts, 100).span(facts[2].who), starved=False)

    sentence = "its other threads wait for a CPU 30 % of the time (its peers 5 %)"
    assert told.sentences == ((sentence,) if said else ())


@pytest.mark.parametrize(("cores", "starved", "said"), [(0.4, True, True), (0.4, False, False), (0.05, True, False)])
def test_that_other_threads_are_busy_is_said_of_a_rank_that_takes_longer_in_all_phases(
    cores: float, starved: bool, said: bool
) -> None:
    facts = [samples(fact, 0.01) for fact in job(3, 120, late(2))]
    facts = [
        replace(fact, samples={**fact.samples, "cpu": (0.5 + (cores if rank == 2 else 0.02)) * fact.samples["period"]})
        for rank, fact in enumerate(facts)
    ]

    told = beside(facts[2], facts[:2], *study(facts, 100).span(facts[2].who), starved=starved)

    sentence = "its other threads use 40 % of a CPU (its peers' 2 %), and keep the GIL meanwhile if they run Python"
    assert told.sentences == ((sentence,) if said else ())


@pytest.mark.parametrize(("theirs", "said"), [(100_000.0, False), (2_000.0, True)])
def test_that_a_rank_takes_new_pages_all_the_time_is_said_where_its_peers_do_not(theirs: float, said: bool) -> None:
    facts = [samples(fact, 0.01) for fact in job(3, 120, late(2))]
    facts = [
        replace(
            fact, samples={**fact.samples, "page_faults": (150_000.0 if rank == 2 else theirs) * fact.samples["period"]}
        )
        for rank, fact in enumerate(facts)
    ]

    told = beside(facts[2], facts[:2], *study(facts, 100).span(facts[2].who), starved=False)

    assert ["it takes 150,000 new pages a second (its peers' 2,000)" in one for one in told.sentences] == [True] * said


def test_a_busy_host_among_others_is_named_as_a_host() -> None:
    facts = job(8, 120, late(4, 5, 6, 7), hosts=2)
    facts = [samples(fact, 0.40 if rank >= 4 else 0.05) for rank, fact in enumerate(facts)]

    verdict = verdict_on(facts)

    assert (verdict.state, verdict.kind, sorted(verdict.ranks)) == ("stands out", "host", [4, 5, 6, 7])
    assert verdict.sentence.startswith("host node1 (ranks 4-7) holds the job up: ")


@pytest.mark.parametrize(
    ("delay", "cpu", "why"),
    [
        (0.30, 0.5, "it sleeps, and waits for a CPU no longer than its peers"),
        (0.40, 0.5, "it waits a little longer, which explains a quarter"),
        (0.66, 1.0, "it computes more, and waits in proportion"),
        (0.80, 1.0, "it computes more, and waits more than in proportion"),
        (float("nan"), 0.5, "the recorder or the kernel does not tell"),
    ],
)
def test_a_rank_that_is_late_for_another_reason_is_named_on_a_busy_host_too(delay: float, cpu: float, why: str) -> None:
    facts = job(4, 120, late(2))
    facts = [samples(fact, delay, cpu=cpu) if rank == 2 else samples(fact, 0.30) for rank, fact in enumerate(facts)]

    assert verdict_on(facts).ranks == (2,), why


@pytest.mark.parametrize(("delay", "usual", "state"), [(0.35, 0.25, "not enough data"), (0.10, 0.05, "stands out")])
def test_a_few_seconds_do_not_tell_a_busy_host_from_a_slow_rank(delay: float, usual: float, state: str) -> None:
    facts = job(4, 40, late(2))
    facts = [samples(fact, delay if rank == 2 else usual) for rank, fact in enumerate(facts)]

    verdict = verdict_on(facts)

    assert verdict.state == state, verdict.sentence
    if state == "not enough data":
        assert verdict.sentence.startswith("not enough data: rank 2 costs "), verdict.sentence
        assert "waits for a CPU 35 % of the time, peers with the same CPUs 25 %" in verdict.sentence
        assert "--steps" in verdict.sentence


def test_a_slow_rank_is_named_without_one_that_waits_for_a_cpu() -> None:
    slow = {2: LATE, 5: {"data_wait": 0.060}}
    facts = [
        samples(fact, 0.30 if rank == 2 else 0.05)
        for rank, fact in enumerate(job(8, 120, lambda rank, step: slow.get(rank, {})))
    ]

    verdict = verdict_on(facts)

    assert (verdict.state, verdict.ranks, verdict.where) == ("stands out", (5,), "data_wait"), verdict.sentence


def test_a_few_long_stalls_for_want_of_a_cpu_are_the_host_s() -> None:
    facts = job(4, 160, lambda rank, step: {"forward": 1.0} if rank == 2 and step in (91, 110, 132) else {})
    unknown = verdict_on(facts)
    facts = [samples(fact, 0.45 if rank == 2 else 0.05) for rank, fact in enumerate(facts)]

    verdict = verdict_on(facts)

    assert unknown.sentence.startswith("not enough data: rank 2 may cost "), unknown.sentence
    assert (verdict.state, verdict.where) == ("busy host", "node0"), verdict.sentence


def test_a_cost_that_rotates_on_a_busy_host_is_told_with_that() -> None:
    stalls = [[random.Random(f"{rank} {step}").random() < 0.2 for step in range(120)] for rank in range(4)]
    facts = job(4, 120, lambda rank, step: {"forward": 0.2 * stalls[rank][step]})

    quiet = verdict_on([samples(fact, 0.01) for fact in facts])
    busy = verdict_on([samples(fact, 0.21) for fact in facts])

    assert (quiet.state, busy.state) == ("rotates", "rotates")
    assert "wait for a CPU" not in quiet.sentence
    assert "; ranks wait for a CPU 21 % of the time: 4 ranks compared" in busy.sentence, busy.sentence


def test_a_cost_that_rotates_is_the_host_s_where_ranks_wait_as_long_for_a_cpu() -> None:
    stalls = [[random.Random(f"{rank} {step}").random() < 0.2 for step in range(120)] for rank in range(4)]
    facts = job(4, 120, lambda rank, step: {"forward": 0.03 * stalls[rank][step]})

    quiet = verdict_on([samples(fact, 0.01) for fact in facts])
    busy = verdict_on([samples(fact, 0.31) for fact in facts])

    assert quiet.state == "rotates", quiet.sentence
    assert quiet.share is not None
    assert quiet.share < 0.31
    assert (busy.state, busy.where, busy.ranks) == ("busy host", "node0", ()), busy.sentence
    assert busy.sentence.startswith("host node0 is busy: ranks wait for a CPU 31 % of the time, and so by turns for")


def test_samples_that_cover_less_than_half_of_the_steps_tell_nothing() -> None:
    facts = [samples(fact, 0.40 if rank == 2 else 0.05) for rank, fact in enumerate(job(4, 120, late(2)))]
    late_on = [{name: values[-6:] for name, values in fact.samples.items()} for fact in facts]
    facts = [replace(fact, samples=rows) for fact, rows in zip(facts, late_on, strict=True)]

    assert verdict_on(facts).ranks == (2,)
