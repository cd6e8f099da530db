"""The operations that the job's losses are made of, for `torch.autograd_graph`.

The training thread notes them before a backward (steps/loss_graph.py); the thread that asks waits for a step and a half
at most, one second if there is none.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Mapping
from time import monotonic, sleep
from typing import Any

from ..source import Recorder
from ..steps.loss_graph import MAX_LOSSES, LossGraph, Operation
from ..steps.step import GraphReader
from ..torch import loaded

__all__ = ["answer", "read_losses"]

READS = True
WAIT_S, POLL_S = 1.0, 0.005
#: The steps that are looked at: a whole one, and the rest of the one under way.
NUM_STEPS = 2
_one_at_a_time = allocate_lock()


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row per operation."""
    graph = LossGraph()
    notes = read_losses(recorder, graph, MAX_LOSSES)
    return {"columns": Operation._fields, "rows": [list(one) for one in graph.operations], "notes": notes}


def read_losses(recorder: Recorder, reader: GraphReader, num_losses: int) -> list[str]:
    """Have the training thread read the graphs of the next losses. Return why none was read."""
    if loaded("torch.autograd") is None:
        return ["the target has not imported torch"]
    if not _one_at_a_time.acquire(timeout=2 * WAIT_S):
        return ["others ask for the same: ask again"]
    try:
        recorder.step.graph_readers.append(reader)
        deadline, last = monotonic() + WAIT_S, recorder.num_steps + NUM_STEPS
        while monotonic() < deadline and reader.num_losses < num_losses and recorder.num_steps < last:
            sleep(POLL_S)
    finally:
        recorder.step.graph_readers.remove(reader)
        _one_at_a_time.release()
    return [] if reader.num_losses else ["no backward has begun meanwhile"]
