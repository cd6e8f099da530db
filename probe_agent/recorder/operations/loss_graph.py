"""The operations that the job's losses are made of, for `torch.autograd_graph`.

The training thread notes them before a backward (steps/loss_graph.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..source import Recorder
from ..steps.graph_reader import read_losses
from ..steps.loss_graph import MAX_LOSSES, LossGraph, Operation

__all__ = ["answer"]

READS = True


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row per operation."""
    graph = LossGraph(lambda value: recorder.device.is_plain(value))  # which is known with torch alone
    notes = read_losses(recorder.step.graph_readers, graph, MAX_LOSSES, lambda: recorder.num_steps)
    return {"columns": Operation._fields, "rows": [list(one) for one in graph.operations], "notes": notes}
