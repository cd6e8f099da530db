"""Ranks whose own CPUs other work uses: no rank is late, and data are late on all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from probe_cli.cluster.compare.comparison import Verdict
from probe_cli.cluster.compare.facts import Facts
from probe_cli.cluster.compare.named import named
from probe_cli.cluster.compare.study import study
from probe_cli.cluster.compare.verdict import judge

from .made import job
from .test_starved import samples


def with_delays(fact: Facts, others: float, *, cpus: str, cpu: float = 0.2, spread: float = 0.0) -> Facts:
    """Return a rank whose other threads wait for a CPU for that part of the time, on these CPUs; its training
    thread does all its work."""
    sampled = samples(fact, 0.01, cpu=cpu, cpus=cpus)
    period = sampled.samples["period"]
    scatter = 1 + spread * np.cos(np.pi * np.arange(len(period)))
    more = {"run_delay_others": others * period * scatter, "cpu": cpu * period}
    return replace(sampled, samples={**sampled.samples, **more})


def verdict_on(facts: Sequence[Facts]) -> Verdict:
    found, told = study(facts, 100), {fact.who: fact for fact in facts}
    return judge(found, named(found, told), told)


def facts_with(others: Sequence[float], cpus: Sequence[str], **more: float) -> list[Facts]:
    return [
        with_delays(fact, delay, cpus=own, **more) for fact, delay, own in zip(job(4, 140), others, cpus, strict=True)
    ]


def test_a_rank_whose_cpu_other_work_uses_is_named_though_no_rank_is_late() -> None:
    verdict = verdict_on(facts_with([0.02, 0.02, 0.40, 0.02], ["0", "1", "2", "3"]))

    assert (verdict.state, verdict.exit_code, verdict.ranks) == ("stands out", 5, (2,)), verdict.sentence
    assert verdict.sentence.startswith(
        "rank 2 holds the job up, by up to 38 % of its time: other work uses its CPUs (2); all its threads together"
        " wait for a CPU 41 % of the time, those of its peers 3 %, so that data are late on all ranks: "
    ), verdict.sentence
    assert verdict.share == pytest.approx(0.38)


@pytest.mark.parametrize("peers", [0.20, 0.50])
def test_it_is_named_also_where_its_peers_wait_for_each_other_on_one_cpu(peers: float) -> None:
    verdict = verdict_on(facts_with([peers, peers, 0.36, peers], ["1", "1", "0", "1"], cpu=0.08))

    assert verdict.ranks == (2,), verdict.sentence
    assert "all its threads together wait for a CPU 37 % of the time, and have one 8 %, so that" in verdict.sentence
    assert verdict.share == pytest.approx(0.29), "no longer than it works would its threads wait for each other"


@pytest.mark.parametrize(
    ("others", "cpus"),
    [
        ([0.02, 0.02, 0.40, 0.02], ["0-3"] * 4),  # a peer may use the same CPUs
        ([0.02, 0.02, 0.40, 0.02], ["0", "1", "1-2", "3"]),
        ([0.30, 0.35, 0.40, 0.30], ["0", "1", "2", "3"]),  # all are crowded
        ([0.02, 0.02, 0.05, 0.02], ["0", "1", "2", "3"]),  # too little to cost anything
        ([0.20, 0.22, 0.36, 0.21], ["1", "1", "0", "1"]),  # its own threads may wait so long for each other
    ],
)
def test_nobody_is_named_where_the_peers_fare_alike_or_little_is_lost(others: list[float], cpus: list[str]) -> None:
    verdict = verdict_on(facts_with(others, cpus))

    assert (verdict.state, verdict.ranks) == ("nobody", ()), verdict.sentence


def test_nobody_is_named_where_it_is_so_in_half_of_the_seconds_or_the_peers_compute_all_the_time() -> None:
    now_and_then = facts_with([0.02, 0.02, 0.40, 0.02], ["0", "1", "2", "3"], spread=0.95)
    computing = facts_with([0.02, 0.02, 0.40, 0.02], ["0", "1", "2", "3"], cpu=0.97)

    assert verdict_on(now_and_then).ranks == ()
    assert verdict_on(computing).ranks == ()
