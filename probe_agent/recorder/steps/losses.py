"""Loss of one step from the losses that backward was called on: `loss` of `python.steps`.

Runs on the training thread: a list append per backward, an addition per step, and 1 to 3 µs to inspect the end of the
loss's graph. No saved value of the graph is read: one kept by a checkpoint would run the checkpoint.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ..ring.table import NULL_FLOAT
from ..torch.device import Later

__all__ = ["Losses", "is_part"]

#: Nodes that may lie between the loss and its scaling.
_PASSED = {"CloneBackward0", "ToCopyBackward0", "ViewBackward0", "SqueezeBackward0", "ReshapeAliasBackward0"}
_SCALED = {"DivBackward0", "MulBackward0"}
MAX_DEPTH = 4


class Losses:
    """The losses since the step began or its gradients were cleared."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop the losses so far, whose gradients were cleared."""
        self._num, self._sum, self._are_parts = 0, 0.0, True
        self._coming: deque[Later] = deque()

    def add(self, value: float | Later, *, is_part: bool) -> None:
        self._num += 1
        self._are_parts &= is_part
        if isinstance(value, Later):
            self._coming.append(value)
        elif value == NULL_FLOAT:
            self._sum = NULL_FLOAT
        elif self._sum != NULL_FLOAT:
            self._sum += value

    @property
    def are_parts(self) -> bool:
        """Whether each loss so far was scaled by a constant at its end; false without a loss."""
        return self._num > 0 and self._are_parts

    def of_step(self) -> float | Later:
        """Return the sum of parts or the mean of whole losses; NULL if there is none."""
        if not self._num or self._sum == NULL_FLOAT:
            return NULL_FLOAT
        by = 1 if self._are_parts else self._num
        return _Total(self._sum, self._coming, by) if self._coming else self._sum / by


class _Total(Later):
    """The sum of a number and of those still on the device, divided by `by`."""

    def __init__(self, known: float, coming: deque[Later], by: int) -> None:
        self._known = known
        self._coming = coming
        self._by = by

    @property
    def value(self) -> float | None:
        while self._coming:
            value = self._coming[0].value
            if value is None:
                return None
            self._known += value
            self._coming.popleft()
        return self._known / self._by


def is_part(loss: Any) -> bool:
    """Return whether a loss is scaled by a constant at its end: it is then a part of the step's loss."""
    return _is_scaled(loss.grad_fn, MAX_DEPTH)


def _is_scaled(node: Any, depth: int) -> bool:
    if node is None or not depth:
        return False
    name, above = type(node).__name__, [one for one, _ in node.next_functions if one is not None]
    if name in _SCALED:
        return len(above) == 1
    if name in _PASSED or name == "AddBackward0":
        return bool(above) and all(_is_scaled(one, depth - 1) for one in above)
    return False
