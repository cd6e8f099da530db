"""Device memory that is fragmented: rows made by hand, for no GPU has made any yet."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def memory(**others: Any) -> list[dict[str, Any]]:
    usual = {"step": 5, "ts": datetime(2026, 1, 1), "device": "cuda:0", "allocated": 30_000.0, "reserved": 60_000.0}
    return [{**usual, "inactive": 25_000.0, "peak_allocated": 34_000.0, "retries": 0, **others}]


def test_fragmented_memory_is_named_and_growing_segments_advised(judged: Judged) -> None:
    (found,) = judged("memory-fragmented", {"torch.memory": memory()})

    assert "expandable_segments" in found.try_first


def test_growing_segments_are_not_advised_where_they_are_set(judged: Judged) -> None:
    env = [{"kind": "variable", "name": "PYTORCH_CUDA_ALLOC_CONF", "value": "expandable_segments:True"}]

    (found,) = judged("memory-fragmented", {"torch.memory": memory(), "process.env": env})

    assert not [text for text in (found.try_first, *found.advice) if "expandable" in text]


def test_little_of_it_is_fine(judged: Judged) -> None:
    assert judged("memory-fragmented", {"torch.memory": memory(inactive=3_000.0)}) == []


def test_without_a_device_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("memory-fragmented", {})


def test_what_a_step_uses_at_its_peak_is_not_fragmented(judged: Judged) -> None:
    assert judged("memory-fragmented", {"torch.memory": memory(peak_allocated=58_000.0)}) == []
