"""The job's parameters: the optimizer that holds each, and how often it was updated, for `torch.parameters`.

Reads the version counters that torch keeps of every tensor, and the optimizer's state; no values, so it waits for no
device. Takes about 10 µs per parameter on a thread of the recorder, microseconds of the GIL at a time; gradients are
read by the training thread when a step has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..source import Recorder
from ..steps.gradient_reader import version_of
from ..steps.tensor_reader import PARAMETER, items_of, unregistered
from ..torch import host_number, inventory

__all__ = ["answer"]

READS = True
MAX_PARAMETERS = 20_000
COLUMNS = (
    "module", "parameter", "parameters", "shape", "trainable", "versions", "has_gradient", "gradient_versions",
    "optimizer", "param_group", "lr", "updates", "is_cleared", "steps_seen", "registered",
)  # fmt: skip


class _Held(NamedTuple):
    """State of a parameter in the optimizer that holds it."""

    optimizer: str | None = None
    param_group: int | None = None
    lr: float | None = None
    #: By the optimizer's own count, if it counts on the host.
    updates: int | None = None
    is_cleared: bool | None = None


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row per parameter, in the order of the modules."""
    gradients = recorder.gradients.read()
    models = [(name, model) for name, model, _ in inventory.numbered(recorder.find(inventory.MODEL))]
    optimizers = [(name, one) for name, one, _ in inventory.numbered(recorder.find(inventory.OPTIMIZER))]
    held = _held(optimizers, {id(one) for one, _ in recorder.seen.clearings.alive()})
    rows: list[list[object]] = []
    listed: set[int] = set()
    for registered, items in (
        (True, items_of(models, (), (PARAMETER,))),
        (False, unregistered(models)),
        (None, items_of((), optimizers, (PARAMETER,))),
    ):
        for item in items:
            tensor = item.tensor()
            if tensor is None or id(tensor) in listed or len(rows) >= MAX_PARAMETERS:
                continue
            listed.add(id(tensor))
            gradient = gradients.of(tensor)
            rows.append(
                [
                    item.module or None,
                    item.name,
                    *_size(tensor),
                    bool(tensor.requires_grad),
                    version_of(tensor),
                    gradient is not None if gradients.is_known(tensor) else None,
                    None if gradient is None else gradient.version,
                    *held.get(id(tensor), _Held()),
                    recorder.num_steps,
                    registered,
                ]
            )
    return {"columns": COLUMNS, "rows": rows, "notes": gradients.notes if rows else [inventory.unseen("model")]}


def _held(optimizers: Iterable[tuple[str, Any]], cleared: set[int]) -> dict[int, _Held]:
    """Return what the optimizers know of their parameters, by the parameter's id."""
    found: dict[int, _Held] = {}
    for name, optimizer in optimizers:
        attributes = inventory.attributes_of(optimizer)
        is_cleared = bool(cleared.intersection(map(id, (optimizer, *inventory.wrapped_in(optimizer)))))
        state = attributes.get("state", {})
        for number, group in enumerate(list(attributes.get("param_groups", ()))):
            lr = host_number(group.get("lr"))
            for parameter in list(group.get("params", ())):
                kept = state.get(parameter)
                updates = host_number(kept.get("step")) if isinstance(kept, dict) else None
                found[id(parameter)] = _Held(name, number, lr, None if updates is None else int(updates), is_cleared)
    return found


def _size(tensor: Any) -> tuple[int, str] | tuple[None, None]:
    """Return the number of elements, and the shape: `280000x32`."""
    try:
        return int(tensor.numel()), "x".join(map(str, tensor.shape))
    except (RuntimeError, ValueError):
        return None, None  # of a lazy module: no shape yet
