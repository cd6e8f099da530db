"""Containers that grow, and memory with them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from probe_cli.diagnose.finding import Certainty, NoEvidence, NotApplicable

from .conftest import Judged

CACHE: dict[str, Any] = {
    "place": "local `cache` of main() at train.py:9", "class": "dict", "items": 900, "added": 20, "period": 0.4,
    "tensors": 0, "graphs": 0, "tensor_size": 0.0, "size": 150.0, "steps": 20,
}  # fmt: skip


def job(growth: float, num: int = 40, **container: Any) -> dict[str, Any]:
    """A container, memory that grows by `growth` MiB a second, and a host that is full with 3,000 MiB more."""
    began = datetime(2026, 1, 1)
    samples = [
        {"step": at, "ts": began + timedelta(seconds=at), "rss": 300 + growth * at, "rss_shared": 0.0}
        for at in range(num)
    ]
    return {
        "python.containers": [{**CACHE, **container}],
        "process.samples": samples,
        "process.memory": [{"host_total": 8000.0, "host_available": 3000.0}],
    }


def test_a_cache_that_grows_with_memory_is_named(judged: Judged) -> None:
    (found,) = judged("container-grows", job(5.0))

    assert "a dict grows with each step, to 900 items" in found.sentence
    assert found.certainty is Certainty.LIKELY
    assert "from 300 MiB to 495 MiB" in found.evidence[1]


def test_a_container_that_grows_is_named_before_memory_alone_would_be(judged: Judged) -> None:
    early = {**job(5.0), "process.memory": [{"host_total": 90_000.0, "host_available": 20_000.0}]}

    with pytest.raises(NoEvidence, match="ask again in"):
        judged("memory-grows", early)
    assert [found.certainty for found in judged("container-grows", early)] == [Certainty.POSSIBLE]


def test_views_that_keep_batches_of_the_loader_in_shared_memory_are_named(judged: Judged) -> None:
    kept = job(0.0, **{"class": "deque"})
    for at, sample in enumerate(kept["process.samples"]):
        sample["shm_used"] = 40 + 8.0 * at
    now = {"shm_size": 12_000.0, "shm_used": 352.0, **kept["process.memory"][0]}

    (found,) = judged("container-grows", {**kept, "process.memory": [now]})

    assert "/dev/shm has grown from" in found.evidence[1]
    assert any("clone()" in advice for advice in found.advice)
    assert judged("memory-grows", {**kept, "process.memory": [now]}) == []


def test_a_log_of_numbers_and_a_cache_that_is_full_are_fine(judged: Judged) -> None:
    assert judged("container-grows", job(0.01)) == []
    assert judged("container-grows", job(5.0, added=0)) == []


def test_a_small_one_beside_memory_that_grows_is_fine(judged: Judged) -> None:
    assert judged("container-grows", job(5.0, size=0.1)) == []


def test_without_samples_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("container-grows", job(5.0, num=3))
