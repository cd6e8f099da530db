"""A rank whose whole process stands still while it waits for data: no rank is late, but the data are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from probe_cli.cluster.compare.comparison import Verdict
from probe_cli.cluster.compare.evidence import beside
from probe_cli.cluster.compare.facts import Facts
from probe_cli.cluster.compare.named import named
from probe_cli.cluster.compare.study import study
from probe_cli.cluster.compare.verdict import judge

from .made import chain
from .test_starved import samples

NUM_RANKS, NUM_STEPS = 4, 100


def verdict_on(facts: Sequence[Facts], periods: Sequence[float]) -> Verdict:
    sampled = [samples(fact, 0.0, cpu=0.2, period=period) for fact, period in zip(facts, periods, strict=True)]
    found, told = study(facts, NUM_STEPS), {fact.who: fact for fact in sampled}
    return judge(found, named(found, told), told)


def often(rank: int, step: int) -> float:
    return 0.2 * (rank == 2 and step % 10 == 3)


def test_a_rank_that_is_stopped_while_it_waits_is_named_though_no_rank_is_late() -> None:
    verdict = verdict_on(chain(NUM_STEPS, late=often), [1.0, 1.0, 1.25, 1.0])

    assert (verdict.state, verdict.ranks, verdict.period) == ("stands out", (2,), 10), verdict.sentence
    assert verdict.sentence.startswith("rank 2 holds the job up, by up to 33 % ("), verdict.sentence
    why = "its process stands still, 20 % of the time or more (stopped by a signal, a debugger or its cgroup, or"
    why += " something keeps its GIL), and takes data late that had been sent: "
    assert why in verdict.sentence, verdict.sentence
    assert verdict.share == pytest.approx(0.33, abs=0.01)


def test_where_the_process_ran_all_the_time_only_the_data_are_said_to_be_late() -> None:
    verdict = verdict_on(chain(NUM_STEPS, late=often), [1.0] * NUM_RANKS)

    assert (verdict.state, verdict.ranks) == ("nobody", ()), verdict.sentence
    assert verdict.sentence.endswith("rank 2 stands still for data that had been sent 34 % of the time, the others 1 %")


def test_nobody_is_named_whose_process_stood_still_without_making_the_job_wait() -> None:
    verdict = verdict_on(chain(NUM_STEPS), [1.0, 1.0, 1.25, 1.0])

    assert (verdict.state, verdict.ranks) == ("nobody", ()), verdict.sentence
    assert "stands still" not in verdict.sentence


def test_a_named_rank_is_said_to_have_stood_still_unless_the_collector_did_it() -> None:
    first, second = (
        samples(fact, 0.0, period=period)
        for fact, period in zip(chain(NUM_STEPS, late=often)[:2], (1.25, 1.0), strict=True)
    )
    ended = first.steps["ended"]
    since, until = float(ended[0]), float(ended[-1])
    pauses = {"ts": np.linspace(since, until, 11), "duration": np.full(11, 0.02 * (until - since))}

    (said,) = beside(first, [second], since, until, starved=False).sentences
    with_collector = beside(replace(first, pauses=pauses), [second], since, until, starved=False).sentences

    assert said.startswith("none of its Python threads ran 20 % of the time or more: the process was stopped")
    assert [text for text in with_collector if "none of its" in text] == []


@pytest.mark.parametrize("longest", [0.03, 0.2])
def test_a_rank_that_is_stopped_at_work_and_while_it_waits_costs_both(longest: float) -> None:
    """By `longest` seconds at work it costs too little to be named for that alone, or enough."""

    def at_work(rank: int, step: int) -> dict[str, float]:
        return {"forward": longest} if rank == 2 and step % 10 == 7 else {}

    verdict = verdict_on(chain(NUM_STEPS, slow=at_work, late=often), [1.0, 1.0, 1.25, 1.0])

    step = sum(float(one.steps["duration"].mean()) for one in chain(NUM_STEPS)) / NUM_RANKS
    lost = (longest + 0.2) / 10
    assert (verdict.state, verdict.ranks) == ("stands out", (2,)), verdict.sentence
    assert verdict.share == pytest.approx(lost / (step + lost), rel=0.1), verdict.sentence
