"""Names of optimizers: the class, and with several of one class the variable that holds each.

Runs on the training thread: one dictionary lookup per call. When a second optimizer of a class steps for the first
time, the frames are searched once, which takes up to a few ms.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from weakref import ref

from ..names import candidates, frames
from . import inventory

__all__ = ["OptimizerNames"]

_NAME, _ITEM = re.compile(r"`(\w+)`"), re.compile(r"item (\S+) of ")


class OptimizerNames:
    """Names by identity; an entry ends with its optimizer."""

    def __init__(self, training_ident: Callable[[], int | None]) -> None:
        self._training_ident = training_ident
        self._known: dict[int, tuple[str, Any]] = {}  # its name and a weak reference

    def of(self, optimizer: Any) -> str:
        """Return the name of an optimizer that steps."""
        known = self._known.get(id(optimizer))
        if known is None:
            self._learn(optimizer)
            known = self._known[id(optimizer)]
        return known[0]

    def forget(self) -> None:
        """Forget all names."""
        self._known.clear()

    def _learn(self, optimizer: Any) -> None:
        key, kind = id(optimizer), type(optimizer).__name__
        self._known[key] = (kind, ref(optimizer, lambda _: self._known.pop(key, None)))
        alike = [held() for _, held in self._known.values() if type(held()) is type(optimizer)]
        if len(alike) == 1:
            return
        variables = self._variables(optimizer)
        taken: set[str] = set()
        for number, one in enumerate(alike, 1):
            variable = variables.get(id(one))
            name = f"{kind} {variable}" if variable else kind
            if name in taken:
                name = f"{name}#{number}"
            taken.add(name)
            self._known[id(one)] = (name, self._known[id(one)][1])

    def _variables(self, stepping: Any) -> dict[int, str]:
        """Return the variable that holds each optimizer, by identity: `optimizer_d` or `optimizers[1]`."""
        roots = inventory.roots(self._training_ident(), frames.user_frames)
        # A loop variable that holds the stepping optimizer now may have held another one before.
        lasting = [(label, {name: one for name, one in held.items() if one is not stepping}) for label, held in roots]
        return {**_found_in(roots), **_found_in(lasting)}


def _found_in(roots: list[tuple[str, Any]]) -> dict[int, str]:
    found = {}
    for value, place, _ in candidates.walk(inventory.OPTIMIZER, roots):
        item, name = _ITEM.match(place), _NAME.search(place)
        if name is not None:
            for one in (value, *inventory.wrapped_in(value)):
                found[id(one)] = name.group(1) + (item.group(1) if item else "")
    return found
