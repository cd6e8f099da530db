"""The job's optimizers, each parameter group with its options and state, for `torch.optimizers`.

Reads `param_groups` and `state`, the shape, dtype and device of tensors, and the value of single-element CPU tensors.
Takes 1 to 10 ms on a thread of the recorder, microseconds of the GIL at a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..source import Recorder
from ..torch import host_number, inventory, loaded

__all__ = ["answer"]

READS = True
COLUMNS = (
    "optimizer", "place", "param_group", "name", "lr", "weight_decay", "options", "num_tensors", "parameters", "dtype",
    "device", "state_memory", "updates", "cleared_early", "cleared_parts",
)  # fmt: skip


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row per parameter group."""
    rows: list[list[object]] = []
    for optimizer, place in recorder.find(inventory.OPTIMIZER):
        held = inventory.attributes_of(optimizer)
        for number, group in enumerate(list(held.get("param_groups", ()))):
            row = _row(number, group, held.get("state", {}))
            rows.append([type(optimizer).__qualname__, place, *row, *_cleared(recorder, optimizer)])
    return {"columns": COLUMNS, "rows": rows, "notes": [] if rows else [inventory.unseen("optimizer")]}


def _row(number: int, group: Mapping[str, Any], state: Mapping[Any, Any]) -> list[object]:
    parameters = list(group.get("params", ()))
    size, updates = 0.0, None
    for parameter in parameters:
        kept = state.get(parameter)
        if isinstance(kept, dict):
            size += sum(inventory.mib(value) for value in list(kept.values()) if _is_tensor(value))
            updates = host_number(kept.get("step")) if updates is None else updates
    options = {
        key: shown for key, value in list(group.items()) if key != "params" and (shown := _shown(value)) is not None
    }
    return [
        number,
        group.get("name"),
        host_number(group.get("lr")),
        host_number(group.get("weight_decay")),
        json.dumps(options, default=str),
        len(parameters),
        sum(parameter.numel() for parameter in parameters),
        ", ".join(sorted({str(parameter.dtype).partition(".")[2] for parameter in parameters})) or None,
        ", ".join(sorted({str(parameter.device) for parameter in parameters})) or None,
        size,
        None if updates is None else int(updates),
    ]


def _cleared(recorder: Recorder, optimizer: Any) -> tuple[int, int]:
    own = {id(optimizer), *map(id, inventory.wrapped_in(optimizer))}
    found = [noted for one, noted in recorder.seen.clearings.alive() if id(one) in own]
    return sum(noted.early for noted in found), sum(noted.parts for noted in found)


def _is_tensor(value: object) -> bool:
    torch: Any = loaded("torch")
    return isinstance(value, torch.Tensor)


def _shown(value: object) -> object:
    if isinstance(value, (bool, str)) or value is None:
        return value
    if isinstance(value, (tuple, list)):
        return [host_number(item) for item in value]
    return host_number(value)
