"""The operations that the job's losses are made of, for `torch.autograd_graph`.

The training thread notes them at the end of a backward (steps/loss_graph.py); the thread that asks waits for a step and
a half at most, one second if there is none.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Mapping
from time import monotonic, sleep
from typing import Any

from ..source import Recorder
from ..steps.loss_graph import MAX_LOSSES, LossGraph, Operation
from ..torch import loaded

__all__ = ["answer"]

READS = True
WAIT_S, POLL_S = 1.0, 0.005
#: The steps that are looked at: a whole one, and the rest of the one under way.
NUM_STEPS = 2
_one_at_a_time = allocate_lock()


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row per operation."""
    if loaded("torch.autograd") is None:
        return {"columns": Operation._fields, "rows": [], "notes": ["the target has not imported torch"]}
    if not _one_at_a_time.acquire(timeout=2 * WAIT_S):
        return {"columns": Operation._fields, "rows": [], "notes": ["others ask for the same: ask again"]}
    graph = LossGraph()
    try:
        recorder.step.loss_graph = graph
        deadline, last = monotonic() + WAIT_S, recorder.num_steps + NUM_STEPS
        while monotonic() < deadline and graph.num_losses < MAX_LOSSES and recorder.num_steps < last:
            sleep(POLL_S)
    finally:
        recorder.step.loss_graph = None
        _one_at_a_time.release()
    rows = [list(one) for one in graph.operations]
    return {"columns": Operation._fields, "rows": rows, "notes": [] if rows else ["no backward has ended meanwhile"]}
