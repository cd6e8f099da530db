"""Allocations that failed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from .conftest import Judged


def raised(type_: str, message: str) -> dict[str, list[dict[str, Any]]]:
    row = {"step": 7, "ts": datetime(2026, 1, 1), "is_main": True, "type": type_, "message": message}
    return {"python.exceptions": [{**row, "func": "forward", "file": "/job/model.py", "lineno": 12}]}


@pytest.mark.parametrize(
    ("type_", "message", "of"),
    [
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "device"),
        ("MemoryError", "", "host"),
        ("numpy._core._exceptions._ArrayMemoryError", "Unable to allocate 9 GiB", "host"),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes", "host"),
    ],
)
def test_an_allocation_that_failed_is_named(judged: Judged, type_: str, message: str, of: str) -> None:
    (found,) = judged("out-of-memory", raised(type_, message))

    assert f"for want of {of} memory in forward at model.py:12" in found.sentence


def test_an_engine_without_memory_for_its_cache_gets_advice_of_its_own(judged: Judged) -> None:
    (found,) = judged("out-of-memory", raised("ValueError", "No available memory for the cache blocks on cuda"))

    assert "gpu_memory_utilization" in found.advice[0]


def test_another_exception_is_none(judged: Judged) -> None:
    assert judged("out-of-memory", raised("ValueError", "invalid literal")) == []
    assert judged("out-of-memory", {}) == []
