"""Memory that grows on and on."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged


def samples(rss: Any, children: Any = lambda at: 0.0, num: int = 120) -> list[dict[str, Any]]:
    began = datetime(2026, 1, 1)
    return [
        {
            "step": 10 * at,
            "ts": began + timedelta(seconds=at),
            "rss": rss(at),
            "children_rss": children(at),
            "num_children": 2,
        }
        for at in range(num)
    ]


def test_growth_of_the_process_and_of_its_workers_is_named(judged: Judged) -> None:
    found = judged("memory-grows", {"process.samples": samples(lambda at: 500.0 + at, lambda at: 300.0 + 2 * at)})

    assert {one.where for one in found} == {"resident memory", "worker processes"}
    assert "a step" in found[0].sentence


def test_a_cache_that_fills_and_memory_that_comes_and_goes_are_none(judged: Judged) -> None:
    chance = random.Random(1)

    assert judged("memory-grows", {"process.samples": samples(lambda at: 500.0 + min(at, 20) * 20)}) == []
    assert judged("memory-grows", {"process.samples": samples(lambda at: 500.0 + 50 * chance.random())}) == []
    assert judged("memory-grows", {"process.samples": samples(lambda at: 500.0 + 10 * (at % 20))}) == []


def test_a_few_samples_are_not_judged(judged: Judged) -> None:
    with pytest.raises(NoEvidence):
        judged("memory-grows", {"process.samples": samples(lambda at: 500.0 + at, num=5)})
