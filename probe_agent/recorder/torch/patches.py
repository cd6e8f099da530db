"""What stands in the place of something of torch's, until it is taken away again.

Swapping a name is one store: whoever is inside what was there goes on with it undisturbed.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

__all__ = ["StandIns"]


class StandIns:
    """Replaced attributes of modules and classes."""

    def __init__(self) -> None:
        self._all: list[tuple[Any, str, Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._all)

    def put(self, owner: Any, name: str, ours: Any) -> None:
        """Have `ours` where `owner` itself has `name`."""
        self._all.append((owner, name, owner.__dict__[name], ours))
        setattr(owner, name, ours)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put what `make` makes of the function that is there, and looks like it."""
        original = getattr(owner, name)
        self.put(owner, name, functools.update_wrapper(make(original), original))

    def take_back(self) -> None:
        """Put back what was there, except where somebody has replaced ours."""
        while self._all:
            owner, name, original, ours = self._all.pop()
            if owner.__dict__.get(name) is ours:
                setattr(owner, name, original)
