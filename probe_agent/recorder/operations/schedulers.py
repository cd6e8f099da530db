"""The job's learning rate schedulers and how often each has been stepped, for `torch.schedulers`.

Reads attributes of the schedulers and of their optimizers; calls no code of the job and waits for no device. Takes 1 to
10 ms on a thread of the recorder, microseconds of the GIL at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..source import Recorder
from ..torch import host_number, inventory

__all__ = ["answer"]

READS = True
COLUMNS = (
    "scheduler", "place", "optimizer", "calls", "updates", "steps_seen", "batches", "lr", "base_lr", "total",
)  # fmt: skip
#: Attributes that hold the length of a schedule, the most explicit first.
_TOTALS = ("total_steps", "T_max", "total_iters", "max_iters")


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row per scheduler."""
    rows = []
    for scheduler, place in recorder.find(inventory.SCHEDULER):
        held = vars(scheduler)
        optimizer = held.get("optimizer")
        calls = held.get("_step_count")
        rows.append(
            [
                type(scheduler).__qualname__,
                place,
                type(optimizer).__qualname__,
                # torch calls step() once when the scheduler is made.
                max(0, calls - 1) if isinstance(calls, int) else held.get("last_epoch"),
                _updates(optimizer),
                recorder.num_steps,
                _batches(recorder),
                _first(held.get("_last_lr")),
                _base_lr(held, optimizer),
                next((float(held[name]) for name in _TOTALS if isinstance(held.get(name), (int, float))), None),
            ]
        )
    return {"columns": COLUMNS, "rows": rows, "notes": []}


def _updates(optimizer: Any) -> int | None:
    """Return how often an optimizer has updated a parameter, if it counts on the host."""
    most = None
    for state in list(getattr(optimizer, "state", {}).values())[:50]:
        count = state.get("step") if isinstance(state, dict) else None
        number = host_number(count)
        most = most if number is None else max(most or 0, int(number))
    return most


def _batches(recorder: Recorder) -> int | None:
    """Return how many batches the newest pass over a DataLoader has given so far."""
    yielded = getattr(recorder.batches(), "_num_yielded", None)
    return yielded if isinstance(yielded, int) else None


def _base_lr(held: Mapping[str, Any], optimizer: Any) -> float | None:
    """Return the first learning rate that a scheduler began with; ReduceLROnPlateau does not keep it."""
    known = _first(held.get("base_lrs"))
    return _first([getattr(optimizer, "defaults", {}).get("lr")]) if known is None else known


def _first(values: object) -> float | None:
    first = values[0] if isinstance(values, list) and values else None
    return float(first) if isinstance(first, (int, float)) else None
