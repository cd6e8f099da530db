"""The job's models, each module with its parameters and buffers, for `torch.modules`.

Reads `_modules`, `_parameters` and `_buffers`, and the shape, dtype and device of tensors; calls no code of the job and
waits for no device. Takes 20 to 40 µs of CPU time per module, microseconds of the GIL at a time; gradients are read by
the training thread when a step has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..source import Recorder
from ..steps.gradient_reader import Gradients, version_of
from ..torch import inventory

__all__ = ["answer"]

READS = True
MAX_MODULES = 20_000
COLUMNS = (
    "module", "class", "depth", "place", "parameters", "own_parameters", "trainable", "buffers", "dtype", "device",
    "memory", "own_memory", "gradients", "own_gradients", "training", "compiled", "autocast", "statistics_versions",
)  # fmt: skip


class _Held(NamedTuple):
    """One parameter or buffer."""

    key: int
    is_parameter: bool
    number: int
    trainable: int
    memory: float
    gradient: float
    dtype: str
    device: str


class _Sum:
    """Sums over a module and all modules below it; a shared tensor counts once."""

    def __init__(self) -> None:
        self.parameters = self.trainable = self.buffers = 0
        self.memory = self.gradients = 0.0
        self.dtypes: set[str] = set()
        self.devices: set[str] = set()
        self._seen: set[int] = set()

    def add(self, held: _Held) -> None:
        if held.key in self._seen:
            return
        self._seen.add(held.key)
        if held.is_parameter:
            self.parameters += held.number
            self.trainable += held.trainable
            self.gradients += held.gradient
        else:
            self.buffers += held.number
        self.memory += held.memory
        self.dtypes.add(held.dtype)
        self.devices.add(held.device)


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row per module, parents before their children."""
    gradients = recorder.gradients.read()
    rows: list[list[object]] = []
    for name, model, place in inventory.numbered(recorder.find(inventory.MODEL)):
        if len(rows) < MAX_MODULES:
            rows += _rows(model, name, place, gradients, recorder.seen.autocast)
    notes = list(gradients.notes) if rows else [inventory.unseen("model")]
    if len(rows) > MAX_MODULES:
        del rows[MAX_MODULES:]
        notes.append(f"truncated after {MAX_MODULES:,} modules")
    return {"columns": COLUMNS, "rows": rows, "notes": notes}


def _rows(model: Any, name: str, place: str, gradients: Gradients, autocast: Mapping[str, str]) -> list[list[object]]:
    listed = []
    for module, path, above in _walk(model, name):
        own, sums = _Sum(), _Sum()
        listed.append((module, path, len(above), own, sums))
        for held in _tensors(module, gradients):
            for total in (own, sums, *above):
                total.add(held)
        above.append(sums)
    return [_row(*entry, place, autocast) for entry in listed]


def _tensors(module: Any, gradients: Gradients) -> Iterator[_Held]:
    for kind in ("_parameters", "_buffers"):
        for tensor in list(vars(module).get(kind, {}).values()):
            if tensor is None:
                continue
            try:
                number, memory = tensor.numel(), inventory.mib(tensor)
            except (RuntimeError, ValueError):
                continue  # of a lazy module: no shape yet
            is_parameter = kind == "_parameters"
            gradient = gradients.of(tensor) if is_parameter else None
            # NaN, which no sum hides, becomes NULL.
            unknown = is_parameter and tensor.requires_grad and not gradients.is_known(tensor)
            yield _Held(
                key=id(tensor),
                is_parameter=is_parameter,
                number=number,
                trainable=number if tensor.requires_grad else 0,
                memory=memory,
                gradient=float("nan") if unknown else gradient.size if gradient is not None else 0.0,
                dtype=str(tensor.dtype).partition(".")[2],
                device=str(tensor.device),
            )


def _walk(model: Any, name: str) -> Iterator[tuple[Any, str, list[_Sum]]]:
    """Yield each module once, with its first path and the sums of the modules above; the caller adds its own sums."""
    seen: set[int] = set()
    waiting: list[tuple[Any, str, list[_Sum]]] = [(model, name, [])]
    while waiting:
        module, path, above = waiting.pop()
        if id(module) in seen or len(seen) > MAX_MODULES:
            continue
        seen.add(id(module))
        sums = above[:]
        yield module, path, sums
        children = list(vars(module).get("_modules", {}).items())  # at once: the job may add one meanwhile
        waiting += [(child, f"{path}.{key}", sums) for key, child in reversed(children) if child is not None]


def _row(
    module: Any, path: str, depth: int, own: _Sum, sums: _Sum, place: str, autocast: Mapping[str, str]
) -> list[object]:
    kinds = {device.partition(":")[0] for device in sums.devices}
    held = vars(module)
    return [
        path,
        type(module).__qualname__,
        depth,
        place,
        sums.parameters,
        own.parameters,
        sums.trainable,
        sums.buffers,
        ", ".join(sorted(sums.dtypes)) or None,
        ", ".join(sorted(sums.devices)) or None,
        sums.memory,
        own.memory,
        _known(sums.gradients),
        _known(own.gradients),
        bool(_mode_of(held)),
        type(module).__name__ == "OptimizedModule" or held.get("_compiled_call_impl") is not None,
        ", ".join(sorted({autocast[kind] for kind in kinds & {*autocast}})) or None,
        None if (statistics := held.get("_buffers", {}).get("num_batches_tracked")) is None else version_of(statistics),
    ]


def _mode_of(held: Mapping[str, Any]) -> object:
    """Return whether a module is in training mode, by its attributes; a compiled one has that of the module in it."""
    wrapped = held.get("_modules", {}).get("_orig_mod")
    return held["training"] if "training" in held else wrapped is not None and vars(wrapped).get("training")


def _known(size: float) -> float | None:
    return size if size == size else None
