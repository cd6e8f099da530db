"""The optimizers that step and the modules that are called, for whoever asks for them where no frame leads to them.

Noted on the training thread: of an optimizer once a step, of an outermost module once a call in sampled steps, a look
into a dictionary each (0.1 µs). Weak references: nothing of the job's is kept alive.
"""

from __future__ import annotations

from typing import Any, Callable
from weakref import ref

__all__ = ["InUse"]

#: A job that makes a new one every step must not fill our memory.
MAX_NOTED = 100


class InUse:
    """Objects of one kind, in the order in which they were first seen."""

    def __init__(self) -> None:
        self._noted: dict[int, Callable[[], Any]] = {}

    def note(self, value: Any) -> None:
        """It is in use now."""
        known = self._noted.get(id(value))
        if known is None or known() is not value:
            if len(self._noted) >= MAX_NOTED:
                self._noted.clear()
            self._noted[id(value)] = ref(value)

    def alive(self) -> list[Any]:
        """Those that are still there."""
        found = [known() for known in list(self._noted.values())]
        return [value for value in found if value is not None]

    def clear(self) -> None:
        """Forget all."""
        self._noted.clear()
