"""Weights that the job keeps aside, for `torch.kept_weights`: a state_dict, a dict of tensors, another name of a model.

Told of each is how many of its tensors are the very ones that are trained: `best = model.state_dict()` keeps no copy.
Reads which storage a tensor has, which waits for no device; calls no code of the job. Takes a thread of the recorder
2 ms for a model of 10 modules, 12 ms for 1,000 (benchmarks/samplers.py), microseconds of the GIL at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from ..names import candidates, frames
from ..source import Recorder
from ..torch import inventory, loaded

__all__ = ["answer"]

READS = True
COLUMNS = ("place", "module", "tensors", "shared", "size")
MAX_OBJECTS, MAX_DEPTH, MAX_CHILDREN, MAX_ROWS = 20_000, 3, 100, 50
_TENSOR = candidates.Kind("a tensor", lambda kind: kind in _plain_tensors())
Roots = Sequence[tuple[str, Mapping[str, Any]]]


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row per dict that holds tensors by name, and per further name of a model."""
    models = list(inventory.numbered(recorder.find(inventory.MODEL)))
    roots = inventory.roots(recorder.step.thread, frames.user_frames)
    trained = {
        memory: name
        for name, model, place in models
        for parameter in inventory.parameters([(model, place)], ())
        if (memory := _memory(parameter)) is not None and parameter.requires_grad
    }
    rows = [*_dicts(roots, trained), *_names(roots, models)]
    return {"columns": COLUMNS, "rows": rows[:MAX_ROWS], "notes": [] if models else [inventory.unseen("model")]}


def _dicts(roots: Roots, trained: Mapping[tuple[int, int], str]) -> Iterator[list[object]]:
    """Yield a row for each dict or list that holds tensors, by the way to it."""
    kept: dict[str, list[Any]] = {}
    for tensor, place, _ in candidates.walk(_TENSOR, roots, MAX_OBJECTS, MAX_DEPTH):
        _, found, holder = place.partition(" of ")
        if found and "`" in holder:  # else it is a variable's own value
            kept.setdefault(holder, []).append(tensor)
    for holder, tensors in kept.items():
        shared = Counter(trained[one] for one in map(_memory, tensors) if one is not None and one in trained)
        module = max(shared, key=shared.__getitem__, default=None)
        yield [holder, module, len(tensors), sum(shared.values()), sum(map(inventory.mib, tensors))]


def _names(roots: Roots, models: Iterable[tuple[str, Any, str]]) -> Iterator[list[object]]:
    """Yield a row for each variable or attribute that holds a model which was found under another name."""
    known = {id(model): (name, model, place) for name, model, place in models}
    for label, values in roots:
        kind, _, where = label.partition(" of ")
        for variable, value in list(values.items()):
            way = f"`{variable}` of {where}"
            held = [(f"{kind} {way}", value)]
            if type(value) not in (ModuleType, type):
                held += [
                    (f"attribute `{name}` of {kind} {way}", one)
                    for name, one in candidates.items(candidates.attributes(value), MAX_CHILDREN)
                    if type(name) is str
                ]
            for place, one in held:
                name, model, first = known.get(id(one), ("", None, ""))
                if model is not None and one is model and place != first:
                    num_parameters = sum(1 for _ in inventory.parameters([(model, place)], ()))
                    yield [place, name, num_parameters, num_parameters, None]


def _memory(tensor: Any) -> tuple[int, int] | None:
    """Return the storage of a tensor and the offset of its first value in it; None if it has no storage, or is of a
    class that may run code of the job. `data_ptr()` would copy the values of a lazy clone, which is made on write."""
    if type(tensor) not in _plain_tensors():
        return None
    try:
        return tensor.untyped_storage()._cdata, tensor.storage_offset()
    except RuntimeError:  # sparse, of oneDNN, or wrapped by torch.func while it runs
        return None


def _plain_tensors() -> tuple[type, ...]:
    torch: Any = loaded("torch")
    return () if torch is None else (torch.Tensor, torch.nn.Parameter)
