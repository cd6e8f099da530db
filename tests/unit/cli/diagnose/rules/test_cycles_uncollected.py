"""Memory that waits for a collector that does not run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from probe_cli.diagnose.finding import Certainty, NotApplicable

from .conftest import Judged


def job(growth: float, uncollected: Callable[[int], int], num: int = 40) -> dict[str, Any]:
    """A process whose memory grows by `growth` MiB a second, on a host that is full with 3,000 MiB more."""
    began = datetime(2026, 1, 1)
    samples = [
        {
            "step": 10 * at,
            "ts": began + timedelta(seconds=at),
            "rss": 300 + growth * at,
            "rss_shared": 0.0,
            "uncollected": uncollected(at),
        }
        for at in range(num)
    ]
    return {
        "process.samples": samples,
        "process.memory": [{"host_total": 8000.0, "host_available": 3000.0}],
    }


def test_objects_that_wait_while_memory_grows_are_named(judged: Judged) -> None:
    (found,) = judged("cycles-uncollected", job(5.0, lambda at: 5_000 * at))

    assert "does not run: 195,000 objects wait for it" in found.sentence
    assert found.certainty is Certainty.LIKELY
    assert found.evidence[0] == "195,000 objects more in 39 s (390 steps)"


def test_a_collector_that_runs_and_memory_that_does_not_grow_are_fine(judged: Judged) -> None:
    assert judged("cycles-uncollected", job(5.0, lambda at: 700 * (at % 3))) == []
    assert judged("cycles-uncollected", job(5.0, lambda at: 40_000 * (at % 10))) == [], "by hand, now and then"
    assert judged("cycles-uncollected", job(0.0, lambda at: 5_000 * at)) == []
    assert judged("cycles-uncollected", job(5.0, lambda at: 50_000)) == [], "memory of something else"


def test_without_samples_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("cycles-uncollected", {})
