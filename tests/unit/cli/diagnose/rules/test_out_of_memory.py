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


def test_the_jobs_own_line_is_named_and_what_torch_adds_left_out(judged: Judged) -> None:
    """As torch 2.11 put it on an H200."""
    message = (
        "CUDA out of memory. Tried to allocate 128.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 121.37 GiB"
        " is free. See documentation for Memory Management (https://pytorch.org/docs/stable/notes/cuda.html)"
    )
    frames = (
        '  File "/job/train.py", line 80, in main\n    held.append(model(batch))\n'
        '  File "/opt/lib/python3.12/site-packages/torch/nn/modules/linear.py", line 134, in forward\n'
    )
    tables = raised("torch.OutOfMemoryError", message)
    tables["python.exceptions"][0]["traceback"] = frames

    (found,) = judged("out-of-memory", tables)

    assert "in main at train.py:80" in found.sentence
    assert found.evidence[0].endswith("121.37 GiB is free.")


def test_an_engine_without_memory_for_its_cache_gets_advice_of_its_own(judged: Judged) -> None:
    (found,) = judged("out-of-memory", raised("ValueError", "No available memory for the cache blocks on cuda"))

    assert "gpu_memory_utilization" in found.advice[0]


def test_another_exception_is_none(judged: Judged) -> None:
    assert judged("out-of-memory", raised("ValueError", "invalid literal")) == []
    assert judged("out-of-memory", {}) == []
