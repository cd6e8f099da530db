"""The step under way: how old it is, and what of it has ended so far, for `python.current_step`.

Reads numbers that the training thread counts anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

from ..source import Recorder

__all__ = ["answer"]

READS = True
COLUMNS = (
    "number", "age", "micro_batches", "data_wait", "modules", "backward", "optimizer", "evaluation", "generation",
)  # fmt: skip


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row; none while no thread has been seen to train."""
    step = recorder.step
    if step.thread is None:
        return {"columns": COLUMNS, "rows": [], "notes": ["no thread has been seen to train so far"]}
    times = (step.data_wait, step.in_modules, step.backward, step.optimizer, step.evaluation, step.generation)
    row: list[float | None] = [step.number, (perf_counter_ns() - step.started) * 1e-9, step.micro_batches]
    row += [None if each is None else each * 1e-9 for each in times]
    return {"columns": COLUMNS, "rows": [row], "notes": []}
