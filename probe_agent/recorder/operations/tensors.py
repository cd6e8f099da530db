"""Values of the job's parameters, gradients and buffers, for `probe … nan`, `probe … grads` and rules of `diagnose`.

The training thread reads them between steps (steps/tensor_reader.py); a thread of the recorder looks for the models
first, 0.5 ms for 10 modules, and wakes 20 times a second until all is read.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import Counter
from collections.abc import Iterable, Mapping
from time import monotonic, sleep
from typing import Any

from ..control.reply import Reply, json_number
from ..source import Recorder
from ..steps.tensor_reader import BUFFER, GRADIENT, MAX_ITEMS, PARAMETER, Found, Item, TensorReader, items_of
from ..torch import inventory, loaded
from ..torch.captures import allow_captures_elsewhere

__all__ = ["stream"]

POLL_S = 0.05
#: Time given to a job that has no model yet.
START_S = 5.0
MAX_BUDGET_MS = 1000.0
#: Tensors in an answer; the others are counted.
MAX_ROWS = 20_000
#: What each question reads, in the order in which it does.
KINDS = {"nan": (GRADIENT, PARAMETER, BUFFER), "grads": (GRADIENT,), "parameters": (PARAMETER,)}
COLUMNS = ("kind", "module", "tensor", "shape", "dtype", "values", "nan", "inf", "zeros", "norm", "biggest", "step")
_one_at_a_time = allocate_lock()


def stream(recorder: Recorder, request: Mapping[str, Any], reply: Reply) -> Mapping[str, object]:
    """Read the tensors; return those that are not finite, or all gradients or parameters, and what was looked at."""
    what, budget_ms, timeout = request.get("what"), request.get("budget_ms"), request.get("timeout")
    if what not in KINDS:
        return _error(f"invalid question {what!r}", f"use one of: {', '.join(KINDS)}")
    if not isinstance(budget_ms, (int, float)) or not 0 < budget_ms <= MAX_BUDGET_MS:
        return _error(f"invalid budget {budget_ms!r}", f"use up to {MAX_BUDGET_MS:g} ms a step")
    if not isinstance(timeout, (int, float)) or not timeout > 0:
        return _error(f"invalid timeout {timeout!r}", "use a number of seconds above 0")
    if loaded("torch.optim.optimizer") is None:
        return _error("cannot read tensors: the target has not imported torch", "use a target that has: probe list")
    if not _one_at_a_time.acquire(False):
        return _error("the tensors of this target are already being read", "try again when that has ended")
    try:
        items = _items(recorder, KINDS[what])
        deadline = monotonic() + min(START_S, float(timeout))
        while not items and monotonic() < deadline and not reply.cancelled():  # the job may be about to make it
            sleep(POLL_S)
            items = _items(recorder, KINDS[what])
        if not items:
            return {"state": "nothing found", "notes": [inventory.unseen("model")]}
        return _read(recorder, reply, items, str(what), float(budget_ms), float(timeout))
    finally:
        _one_at_a_time.release()


def _items(recorder: Recorder, kinds: tuple[str, ...]) -> list[Item]:
    models = [(name, model) for name, model, _ in inventory.numbered(recorder.find(inventory.MODEL))]
    optimizers = [(name, one) for name, one, _ in inventory.numbered(recorder.find(inventory.OPTIMIZER))]
    return list(items_of(models, optimizers, kinds))


def _read(
    recorder: Recorder, reply: Reply, items: list[Item], what: str, budget_ms: float, timeout_s: float
) -> Mapping[str, object]:
    queue, deadline = recorder.at_step, monotonic() + timeout_s
    notes = [] if len(items) <= MAX_ITEMS else [f"only the first {MAX_ITEMS:,} of {len(items):,} tensors are read"]
    reader = TensorReader(
        queue,
        recorder.step,
        recorder.device,
        items[:MAX_ITEMS],
        budget_ms=budget_ms,
        fully=what != "nan",
        fail=recorder.fail,
    )
    allow_captures_elsewhere()  # this thread asks whether the values have arrived
    queue.submit(reader)
    is_over = False
    while not (is_over and reader.collect()):
        is_over = is_over or reader.wait(POLL_S)
        if reply.cancelled() or monotonic() >= deadline or queue.closed:
            reader.cancelled = True
            if is_over:
                notes.append("values are still on the device")
                break
            if queue.withdraw(reader) or queue.closed:
                break
    if not reader.num_steps:
        notes.append(f"no step ended within {timeout_s:g} s; the last step was {queue.last_step()}")
    elif not reader.is_complete:
        notes.append(reader.problem or f"{timeout_s:g} s were too short: wait longer, or raise the budget")
    notes += [f"not read: {_name(item)}: {why}" for item, why in reader.unreadable[:10]]
    found = [one for one in reader.found if not one.counts.is_finite] if what == "nan" else reader.found
    if len(found) > MAX_ROWS:
        notes.append(f"truncated after {MAX_ROWS:,} tensors")
    return {
        "state": "finished" if reader.is_complete else "unfinished",
        "columns": COLUMNS,
        "rows": [_row(one, what != "nan") for one in found[:MAX_ROWS]],
        "looked_at": _looked_at(items, reader),
        "steps": reader.num_steps,
        "longest_s": reader.longest_s,
        "notes": notes,
    }


def _row(found: Found, fully: bool) -> list[object]:
    item, counts = found.item, found.counts
    return [
        item.kind,
        item.module or None,
        item.name,
        "x".join(map(str, found.shape)),
        found.dtype,
        counts.num,
        counts.num_nan,
        counts.num_inf,
        counts.num - counts.nonzero if fully else None,
        json_number(counts.norm) if fully else None,
        json_number(counts.biggest),
        found.step,
    ]


def _looked_at(items: Iterable[Item], reader: TensorReader) -> list[dict[str, object]]:
    """Return for each kind how many tensors there are, were read, do not exist now, and cannot be read."""
    known = Counter(item.kind for item in items)
    absent = Counter(item.kind for item in reader.absent)
    unreadable = Counter(item.kind for item, _ in reader.unreadable)
    told: list[dict[str, object]] = []
    for kind, num in known.items():
        found = [one for one in reader.found if one.item.kind == kind]
        told.append(
            {
                "kind": kind,
                "tensors": num,
                "read": len(found),
                "absent": absent[kind],
                "unreadable": unreadable[kind],
                "values": sum(one.counts.num for one in found),
                "not_finite": sum(not one.counts.is_finite for one in found),
                "first_step": min((one.step for one in found), default=None),
                "last_step": max((one.step for one in found), default=None),
            }
        )
    return told


def _name(item: Item) -> str:
    return f"{item.kind} {item.module}.{item.name}" if item.module else f"{item.kind} {item.name}"


def _error(message: str, hint: str) -> Mapping[str, object]:
    return {"error": {"message": message, "hint": hint}}
