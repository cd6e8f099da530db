"""Long containers of the job and how fast they grow, for `python.containers`: a list of losses that is never emptied.

A bounded search through the values of frames and globals; then lengths are read again and again for 0.4 s, and the
search is made again: a list that got shorter in between is emptied by the job, one that is not found again was dropped.
Reads `__dict__`, lists, tuples, sets, deques and dicts, and of the newest items whether they are tensors; calls no code
of the job. Takes a few ms of the GIL on a thread of the recorder, in pieces of microseconds.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from time import sleep
from typing import Any

from ..names import frames
from ..names.candidates import attributes, items
from ..ring.table import MIB
from ..source import Recorder
from ..torch import inventory, loaded

__all__ = ["answer"]

READS = True
COLUMNS = ("place", "class", "items", "added", "period", "tensors", "graphs", "tensor_size", "size", "steps")
MAX_OBJECTS, MAX_DEPTH, MAX_CHILDREN = 20_000, 4, 100
#: Shorter containers are of no interest.
MIN_ITEMS = 16
#: Of each container so many of the newest items are looked at.
MAX_ITEMS = 200
MAX_ROWS = 50
MAX_PARTS = 20
PAUSE_S, NUM_LOOKS = 0.4, 8
_GROWING = (list, dict, set, deque)
_PLAIN = frozenset((str, bytes, bytearray, int, float, complex, bool, type(None), type))


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return a row for each of the longest containers."""
    found = list(_found(_roots(recorder)))
    before, steps = [_length(container) for container, _ in found], recorder.num_steps
    lengths, shrunk = before, set[int]()
    for _ in range(NUM_LOOKS):
        sleep(PAUSE_S / NUM_LOOKS)
        last, lengths = lengths, [_length(container) for container, _ in found]
        shrunk.update(at for at, length in enumerate(lengths) if length < last[at])
    passed = recorder.num_steps - steps
    still = {id(container) for container, _ in _found(_roots(recorder))}
    listed: list[tuple[tuple[int, int, int], list[object]]] = []
    for at, ((container, place), num) in enumerate(zip(found, lengths)):
        added = 0 if at in shrunk else num - before[at]
        if num >= MIN_ITEMS and id(container) in still:
            row = [place, type(container).__name__, num, added, PAUSE_S, *_held(container, num), passed]
            graphs = int(str(row[6]))
            listed.append(((-graphs, -added, -num), row))
    listed.sort(key=lambda one: one[0])
    rows = [row for _, row in listed[:MAX_ROWS]]
    return {"columns": COLUMNS, "rows": rows, "notes": []}


def _roots(recorder: Recorder) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return inventory.roots(recorder.step.thread, frames.user_frames)


def _found(roots: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[Any, str]]:
    """Yield the containers that the roots lead to, breadth first, each with its shortest way."""
    seen: set[int] = set()
    queue: deque[tuple[Any, str, int]] = deque()
    for label, values in roots:
        kind, _, place = label.partition(" of ")
        queue.extend((value, f"{kind} `{name}` of {place}", 0) for name, value in list(values.items()))
    while queue and len(seen) < MAX_OBJECTS:
        value, way, depth = queue.popleft()
        if type(value) in _PLAIN or id(value) in seen:
            continue
        seen.add(id(value))
        if issubclass(type(value), _GROWING):
            yield value, way
        if depth < MAX_DEPTH:
            queue.extend((child, f"{name} of {way}", depth + 1) for name, child in _children(value))


def _children(value: Any) -> list[tuple[str, Any]]:
    kind = type(value)
    if issubclass(kind, dict):
        listed = items(value, MAX_CHILDREN)
        return [(f"[{name!r}]" if type(name) is str else "an item", child) for name, child in listed]
    if kind in (list, tuple, set, frozenset, deque):
        return [("an item", child) for child in list(islice(value, MAX_CHILDREN))]
    if kind.__module__.partition(".")[0] in ("builtins", "torch", "numpy"):
        return []
    return [(f"attribute `{name}`", child) for name, child in items(attributes(value), MAX_CHILDREN)]


def _length(container: Any) -> int:
    """Return the number of items without calling what a class of the job makes of `len`."""
    return next(kind for kind in _GROWING if issubclass(type(container), kind)).__len__(container)


def _newest(container: Any) -> list[Any]:
    """Return the last items, of a set any, without calling the job's code and in one piece of microseconds."""
    kind = type(container)
    if issubclass(kind, list):
        return list(islice(list.__reversed__(container), MAX_ITEMS))
    if issubclass(kind, dict):
        return list(islice(reversed(dict.values(container)), MAX_ITEMS))
    if issubclass(kind, deque):
        return list(islice(deque.__reversed__(container), MAX_ITEMS))
    return list(islice(set.__iter__(container), MAX_ITEMS))


def _held(container: Any, num: int) -> tuple[int, int, float, float]:
    """Return how many of all items hold tensors, how many of these keep their graph, the MiB of these tensors and that
    of the items; judged by the newest ones."""
    torch: Any = loaded("torch")
    newest = _newest(container)
    tensors = graphs = 0
    size = of_objects = 0.0
    for item in newest:
        parts = _parts(item)
        of_objects += sum(map(_size, parts)) / MIB
        those = [part for part in parts if torch is not None and type(part) in (torch.Tensor, torch.nn.Parameter)]
        tensors += bool(those)
        graphs += any(not part.is_leaf for part in those)
        size += sum(part.numel() * part.element_size() for part in those) / MIB
    share = num / max(1, len(newest))
    return round(tensors * share), round(graphs * share), size * share, (size + of_objects) * share


def _size(value: Any) -> int:
    """Return the bytes of an object without those that it refers to; 0 for one of the job's classes."""
    return sys.getsizeof(value) if type(value).__module__ in ("builtins", "numpy") else 0


def _parts(item: Any) -> list[Any]:
    """Return an item, or what a tuple, list or dict among the items holds."""
    if type(item) in (tuple, list):
        return list(islice(item, MAX_PARTS))
    return list(islice(dict.values(item), MAX_PARTS)) if type(item) is dict else [item]
