"""Requests that wait, or take many times the usual."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def spans(num: int = 200, **parts: Callable[[int], float]) -> list[dict[str, Any]]:
    at = datetime(2026, 1, 1)
    return [
        {"ts": at, "name": name, "path": f"request/{name}", "depth": 1, "duration": of(n), "self_duration": of(n)}
        for name, of in parts.items()
        for n in range(num)
    ]


def test_a_queue_is_named_with_each_stage(judged: Judged) -> None:
    (found,) = judged("requests-slow", {"python.spans": spans(queue=lambda n: 0.2, model=lambda n: 0.05)})

    assert found.where == "request/queue"
    assert "request/model: p50 50 ms" in found.evidence[1]


def test_a_stage_with_a_long_tail_is_named(judged: Judged) -> None:
    rows = spans(search=lambda n: 1.0 if n % 40 == 0 else 0.01, model=lambda n: 0.05)

    (found,) = judged("requests-slow", {"python.spans": rows})

    assert found.where == "request/search"


def test_steady_requests_are_fine(judged: Judged) -> None:
    assert judged("requests-slow", {"python.spans": spans(queue=lambda n: 0.001, model=lambda n: 0.05)}) == []


def test_without_spans_or_in_training_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("requests-slow", {})
    with pytest.raises(NotApplicable):
        judged("requests-slow", {"python.spans": spans(3, model=lambda n: 0.05)})
