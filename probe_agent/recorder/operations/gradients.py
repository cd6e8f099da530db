"""Norms of the gradients of some parameters as they are at the end of the next steps, for `torch.gradients`.

The training thread reads them between steps (steps/tensor_reader.py), 1 ms a step at most, and of large models a
selection that is spread over the layers; parameters of 16 bits are read with their gradients, since a small update is
lost in them. On a GPU it enqueues, and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any

from ..control.reply import json_number
from ..source import Recorder
from ..steps.tensor_reader import GRADIENT, PARAMETER, Item, TensorReader, items_of
from ..torch import inventory, loaded

__all__ = ["answer"]

READS = True
COLUMNS = (
    "place", "num_places", "module", "parameter", "dtype", "shape", "values", "zeros", "norm", "biggest", "weight_norm",
    "read_step",
)  # fmt: skip
#: Tensors that are read, and the values of one; larger ones are left out.
MAX_TENSORS, MAX_VALUES = 64, 4_000_000
HALVES = ("torch.bfloat16", "torch.float16")
BUDGET_MS = 1.0
WAIT_S, POLL_S = 1.0, 0.02


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row per gradient that was read."""
    if loaded("torch.optim.optimizer") is None:
        return {"columns": COLUMNS, "rows": [], "notes": ["the target has not imported torch"]}
    models = [(name, model) for name, model, _ in inventory.numbered(recorder.find(inventory.MODEL))]
    items = [item for item in items_of(models, (), (GRADIENT,)) if _is_trained(item)]
    chosen = [items[round(at)] for at in _spread(len(items))]
    reader = TensorReader(
        recorder.at_step,
        recorder.step,
        recorder.device,
        [*chosen, *(item._replace(kind=PARAMETER) for item in chosen if _is_half(item))],
        budget_ms=BUDGET_MS,
        fully=True,
        fail=recorder.fail,
    )
    if chosen:
        _read(recorder, reader)
    places = {item: place for place, item in enumerate(chosen)}
    found = list(reader.found)
    weights = {one.item._replace(kind=GRADIENT): one.counts.norm for one in found if one.item.kind == PARAMETER}
    rows = [
        [
            places[one.item],
            len(chosen),
            one.item.module,
            one.item.name,
            one.dtype,
            "x".join(map(str, one.shape)),
            one.counts.num,
            one.counts.num - one.counts.nonzero,
            json_number(one.counts.norm),
            json_number(one.counts.biggest),
            json_number(weights.get(one.item)),
            one.step,
        ]
        for one in found
        if one.counts.num and one.item.kind == GRADIENT
    ]
    notes = [] if items else [inventory.unseen("model")]
    if items and not reader.num_steps:
        notes.append(f"no step ended within {WAIT_S:g} s; the last step was {recorder.at_step.last_step()}")
    return {"columns": COLUMNS, "rows": rows, "notes": notes}


def _read(recorder: Recorder, reader: TensorReader) -> None:
    queue, deadline = recorder.at_step, monotonic() + WAIT_S
    queue.submit(reader)
    is_over = False
    while not (is_over and reader.collect()):
        is_over = is_over or reader.wait(POLL_S)
        if monotonic() >= deadline or queue.closed:
            reader.cancelled = True
            queue.withdraw(reader)
            return


def _is_trained(item: Item) -> bool:
    held = item.holder()
    parameter = None if held is None else vars(held)["_parameters"].get(item.name)
    return parameter is not None and parameter.requires_grad and parameter.numel() <= MAX_VALUES


def _is_half(item: Item) -> bool:
    tensor = item._replace(kind=PARAMETER).tensor()
    return tensor is not None and str(tensor.dtype) in HALVES


def _spread(num: int) -> list[float]:
    """Return places from first to last, all of them or MAX_TENSORS."""
    if num <= MAX_TENSORS:
        return list(map(float, range(num)))
    return [at * (num - 1) / (MAX_TENSORS - 1) for at in range(MAX_TENSORS)]
