"""Models, optimizers and pipeline stages seen at work, for questions that no frame of the job answers.

The training thread notes an optimizer once a step, an outermost module once a call in sampled steps: a dictionary
lookup each (0.1 µs). The recorder's thread notes the rest. References are weak: no object of the job is kept alive.
"""

from __future__ import annotations

from time import monotonic
from typing import Any, Callable, Generic, TypeVar
from weakref import ref

__all__ = ["InUse", "Noted", "Passes", "Seen"]

T = TypeVar("T")

#: A job that makes a new object every step must not fill the memory.
MAX_NOTED = 100


class InUse:
    """Objects of one kind, in the order in which they were first seen."""

    def __init__(self) -> None:
        self._noted: dict[int, Callable[[], Any]] = {}

    def note(self, value: Any) -> None:
        """Note that `value` is in use now."""
        known = self._noted.get(id(value))
        if known is None or known() is not value:
            if len(self._noted) >= MAX_NOTED:
                self._noted.clear()
            self._noted[id(value)] = ref(value)

    def alive(self) -> list[Any]:
        """Return the noted objects that still exist."""
        found = [known() for known in list(self._noted.values())]
        return [value for value in found if value is not None]


class Noted(Generic[T]):
    """Notes about objects of one kind, one note for each object."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._noted: dict[int, tuple[Callable[[], Any], T]] = {}

    def of(self, value: Any) -> T:
        """Return what was noted of `value`, to add to; new if it was not seen before."""
        known = self._noted.get(id(value))
        if known is None or known[0]() is not value:
            if len(self._noted) >= MAX_NOTED:
                self._noted.clear()
            known = self._noted[id(value)] = ref(value), self._make()
        return known[1]

    def alive(self) -> list[tuple[Any, T]]:
        """Return the objects that still exist, each with what was noted of it."""
        found = [(known(), noted) for known, noted in list(self._noted.values())]
        return [(value, noted) for value, noted in found if value is not None]


class Passes:
    """Passes over one DataLoader that the training thread has begun, those that came to its end, and their batches."""

    def __init__(self) -> None:
        self.begun = self.whole = self.batches = 0


class Clearings:
    """Steps of one optimizer before which its `zero_grad` had cleared what the last backward made, and times that it
    cleared gradients of a part of the loss in the middle of a step."""

    def __init__(self) -> None:
        self.early = self.parts = 0
        #: How often its last parameter had been changed at its last `zero_grad`.
        self.version: int | None = None


class Seen:
    """Everything seen since the recorder started."""

    def __init__(self) -> None:
        self.since = monotonic()
        #: Optimizers that stepped, and modules called as the outermost one.
        self.optimizers, self.modules = InUse(), InUse()
        #: By optimizer whose `zero_grad` was called.
        self.clearings = Noted(Clearings)
        #: By DataLoader.
        self.passes = Noted(Passes)
        #: Type that autocast computes in, by kind of device, as the training thread had it in a sampled forward.
        self.autocast: dict[str, str] = {}
        #: Stages of torch's pipelines that ran, by index: rank in the pipeline, number of ranks, number of stages.
        self.stages: dict[int, tuple[int, int, int]] = {}
        #: While no step is found: how often each module was seen running as the outermost one: "Net on thread serve_0".
        self.running: dict[str, int] = {}
        #: While no step is found: classes of the optimizers that the job's frames lead to.
        self.optimizer_classes: tuple[str, ...] = ()
