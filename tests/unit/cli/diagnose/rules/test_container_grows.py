"""Containers that grow, and memory with them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged

CACHE: dict[str, Any] = {
    "place": "local `cache` of main() at train.py:9", "class": "dict", "items": 900, "added": 20, "period": 0.4,
    "tensors": 0, "graphs": 0, "tensor_size": 0.0, "size": 150.0, "steps": 20,
}  # fmt: skip


def samples(growth: float, num: int = 40) -> list[dict[str, Any]]:
    began = datetime(2026, 1, 1)
    return [{"step": at, "ts": began + timedelta(seconds=at), "rss": 300 + growth * at} for at in range(num)]


def test_a_cache_that_grows_with_memory_is_named(judged: Judged) -> None:
    (found,) = judged("container-grows", {"python.containers": [CACHE], "process.samples": samples(5.0)})

    assert "a dict grows with each step, to 900 items" in found.sentence


def test_a_log_of_numbers_is_fine(judged: Judged) -> None:
    assert judged("container-grows", {"python.containers": [CACHE], "process.samples": samples(0.01)}) == []
    assert (
        judged("container-grows", {"python.containers": [{**CACHE, "added": 0}], "process.samples": samples(5.0)}) == []
    )


def test_a_small_one_beside_memory_that_grows_is_fine(judged: Judged) -> None:
    assert (
        judged("container-grows", {"python.containers": [{**CACHE, "size": 0.1}], "process.samples": samples(5.0)})
        == []
    )


def test_without_samples_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("container-grows", {"python.containers": [CACHE], "process.samples": samples(5.0, 3)})
