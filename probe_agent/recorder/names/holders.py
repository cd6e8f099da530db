"""Containers that hold given objects, by the names that lead to them: list `history`, global of __main__.

A bounded search through the values of frames and globals, under the GIL for a few ms. Reads `__dict__`, lists, tuples,
sets, deques and dicts; calls no code of the job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .candidates import attributes, items

__all__ = ["holders"]

MAX_OBJECTS = 100_000
MAX_DEPTH = 5
#: Of a long container the newest children are looked at: what leaks is at its end.
MAX_CHILDREN = 1_000
_SEQUENCES = (list, tuple, deque, set, frozenset)
_PLAIN = frozenset((str, bytes, bytearray, int, float, complex, bool, type(None), type))


def holders(idents: Collection[int], roots: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[int, str]:
    """Return for the `id` of each object that is found the innermost container that holds it, with its size."""
    found: dict[int, str] = {}
    seen: set[int] = set()
    num = 0
    queue: deque[tuple[Any, str, int]] = deque()
    for label, values in roots:
        kind, _, place = label.partition(" of ")
        for name, value in values.items():
            if id(value) in idents:
                found.setdefault(id(value), f"{kind} `{name}` of {place}")
            elif type(value) not in _PLAIN:
                queue.append((value, f"`{name}`, {kind} of {place}", 0))
    while queue and num < MAX_OBJECTS and len(found) < len(idents):
        value, name, depth = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for child_name, child in _children(value):
            num += 1
            if type(child) in _PLAIN:
                continue
            if id(child) in idents:
                container = type(value)
                size = f" of {len(value):,} items" if container in (*_SEQUENCES, dict) else ""
                found.setdefault(id(child), f"{container.__name__} {name}{size}")
            elif depth < MAX_DEPTH:
                queue.append((child, f"{child_name} of {name}" if child_name else name, depth + 1))
    return found


def _children(value: Any) -> list[tuple[str, Any]]:
    kind = type(value)
    if kind in _SEQUENCES:
        newest = list(value)[-MAX_CHILDREN:] if len(value) > MAX_CHILDREN else list(value)
        return [("", item) for item in newest]
    if issubclass(kind, dict):
        listed = items(value, MAX_CHILDREN, newest=True)
        return [(f"[{key!r}]" if type(key) is str else "", child) for key, child in listed]
    if kind.__module__.partition(".")[0] in ("builtins", "numpy"):
        return []
    return [(f"attribute `{name}`", child) for name, child in items(attributes(value), MAX_CHILDREN)]
