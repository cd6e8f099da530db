"""Patches of attributes of torch's modules and classes, with their removal.

Swapping an attribute is one store: a thread inside the original function goes on undisturbed. Applied and removed on
the recorder's thread; a patched call costs what its replacement says.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

__all__ = ["Patches"]


class Patches:
    """Replaced attributes of modules and classes."""

    def __init__(self) -> None:
        self._all: list[tuple[Any, str, Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._all)

    def put(self, owner: Any, name: str, ours: Any) -> None:
        """Replace the attribute `name` of `owner` itself by `ours`."""
        patch = owner, name, owner.__dict__[name], ours
        self._all.append(patch)
        setattr(owner, name, ours)
        if not any(one is patch for one in self._all):  # another thread has restored all just before that
            self._all.append(patch)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace a function by what `make` makes of it, with the same name and signature."""
        original = getattr(owner, name)
        self.put(owner, name, functools.update_wrapper(make(original), original))

    def restore(self) -> None:
        """Restore the originals, except where the job has replaced the patch."""
        while self._all:
            owner, name, original, ours = self._all.pop()
            if owner.__dict__.get(name) is ours:
                setattr(owner, name, original)
