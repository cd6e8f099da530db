"""Memory that grows on and on."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged

#: Memory of a host that is full when 3,600 MiB more are taken.
HOST: dict[str, Any] = {"host_total": 8000.0, "host_available": 3600.0}


def samples(
    rss: Any, children: Any = lambda at: 0.0, shared: Any = lambda at: 0.0, num: int = 120
) -> list[dict[str, Any]]:
    began = datetime(2026, 1, 1)
    return [
        {
            "step": 10 * at,
            "ts": began + timedelta(seconds=at),
            "rss": rss(at),
            "rss_shared": shared(at),
            "children_rss": children(at),
            "children_shared": 0.0,
            "num_children": 2,
        }
        for at in range(num)
    ]


def test_growth_of_the_process_and_of_its_workers_is_named(judged: Judged) -> None:
    taken = samples(lambda at: 500.0 + at, lambda at: 300.0 + 2 * at)

    found = judged("memory-grows", {"process.samples": taken, "process.memory": [HOST]})

    assert {one.where for one in found} == {"memory of the process", "memory of child processes"}
    assert {one.share for one in found} == {0.8}, "it weighs more than a step that waits for data"
    assert "a step" in found[0].sentence
    assert "full in 60 min: the 7.8 GiB of the host" in " ".join(line for one in found for line in one.evidence)


def test_what_fills_the_memory_only_after_long_is_told_after_long(judged: Judged) -> None:
    def told(mib_a_second: float, num: int) -> bool:
        taken = samples(lambda at: 500.0 + mib_a_second * at, num=num)
        return bool(judged("memory-grows", {"process.samples": taken, "process.memory": [HOST]}))

    with pytest.raises(NoEvidence, match=r"memory grew by 1 MiB a second for 23 s.*: ask again in 61 s"):
        told(1.0, 30)  # full in an hour
    with pytest.raises(NoEvidence, match=r"for 4 min.*: ask again in "):
        told(0.1, 300)  # full in ten hours
    assert told(0.1, 900), "full in ten hours, seen for twelve minutes"
    assert told(5.0, 30), "full in twelve minutes, seen for 24 s"


def test_of_a_job_that_has_ended_memory_has_to_grow_by_a_quarter_or_for_ten_minutes(judged: Judged) -> None:
    with pytest.raises(NoEvidence, match="ask again in"):
        judged("memory-grows", {"process.samples": samples(lambda at: 500.0 + 0.3 * at, num=300)})
    assert judged("memory-grows", {"process.samples": samples(lambda at: 500.0 + 0.3 * at, num=900)})
    assert judged("memory-grows", {"process.samples": samples(lambda at: 500.0 + 10 * at, num=120)})


def test_files_that_are_read_and_rings_that_fill_are_no_growth(judged: Judged) -> None:
    taken = samples(lambda at: 500.0 + 20 * at, shared=lambda at: 100.0 + 20 * at, num=900)

    assert judged("memory-grows", {"process.samples": taken, "process.memory": [HOST]}) == []


def test_a_cache_that_fills_and_memory_that_comes_and_goes_are_none(judged: Judged) -> None:
    chance = random.Random(1)

    assert judged("memory-grows", {"process.samples": samples(lambda at: 500.0 + min(at, 20) * 20)}) == []
    assert judged("memory-grows", {"process.samples": samples(lambda at: 500.0 + 50 * chance.random())}) == []
    assert judged("memory-grows", {"process.samples": samples(lambda at: 500.0 + 10 * (at % 20))}) == []


def test_a_few_samples_are_not_judged(judged: Judged) -> None:
    with pytest.raises(NoEvidence):
        judged("memory-grows", {"process.samples": samples(lambda at: 500.0 + at, num=5)})
