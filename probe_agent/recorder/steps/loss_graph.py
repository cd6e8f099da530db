"""The operations that a loss is made of, noted by the training thread before a backward.

Only while somebody waits for it: a walk over at most 60 nodes of the graph, 2 µs each. Names and shapes are read, and
the numbers that are divided by, past the hooks of saved tensors: one kept by a checkpoint would run the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from .graph_reader import GraphReader, saved_tensor
from .host_values import value_at

__all__ = ["LossGraph", "Operation"]

MAX_LOSSES, MAX_OPERATIONS, MAX_DEPTH = 4, 60, 8
_SOFTMAXES = ("LogSoftmax", "Softmax")
_SUFFIX = re.compile(r"Backward\d*$")


class Operation(NamedTuple):
    """One node; `user` is the number of the one that takes its output, as its operand number `operand`."""

    backward_call: int
    number: int
    user: int | None
    operand: int
    operation: str
    shape: str | None
    operands: int
    constants: int
    dim: int | None
    divisor: float | None
    plain_grads: int


class LossGraph(GraphReader):
    """The operations of the losses that backward was called on since somebody began to wait."""

    def __init__(self, is_plain: Callable[[object], bool]) -> None:
        self.operations: list[Operation] = []
        self.num_losses = 0
        self._is_plain = is_plain

    def note(self, loss: Any, plain_grads: int = 0) -> None:
        """Note the operations next to a loss, nearest first."""
        if self.num_losses == MAX_LOSSES:
            return
        waiting: list[tuple[Any, int | None, int, int]] = [(loss.grad_fn, None, 0, 0)]
        seen: set[Any] = set()
        number = 0
        while waiting and number < MAX_OPERATIONS:
            node, user, operand, depth = waiting.pop(0)
            if node is None or node in seen:
                continue
            seen.add(node)
            above = [one for one, _ in node.next_functions]
            name, constants = _SUFFIX.sub("", type(node).__name__), above.count(None)
            shape = _shape(node)
            dim = _dim(node, shape) if name in _SOFTMAXES else None
            by = self._divisor(node) if name == "Div" else None
            row = Operation(
                self.num_losses, number, user, operand, name, shape, len(above), constants, dim, by, plain_grads
            )
            self.operations.append(row)
            if depth < MAX_DEPTH:
                waiting += [(one, number, place, depth + 1) for place, one in enumerate(above)]
            number += 1
        self.num_losses += 1

    def _divisor(self, node: Any) -> float | None:
        """Return the one number that is divided by, if it lies in the memory of the host."""
        by = saved_tensor(node, "other", self._is_plain)
        return value_at(by, ()) if by is not None and by.dim() == 0 else None


def _dim(node: Any, shape: str | None) -> int | None:
    """Return the dimension that adds up to 1 after a softmax; torch tells a negative one as a large number."""
    dim = getattr(node, "_saved_dim", None)
    if type(dim) is not int or not shape:
        return None
    return dim if dim < 2**63 else dim - 2**64 + shape.count("x") + 1


def _shape(node: Any) -> str | None:
    """Return the shape of the first output: 32x10; empty of a scalar; None if torch does not tell."""
    for output in getattr(node, "_input_metadata", ()):
        try:
            sizes = tuple(output.shape)
        except RuntimeError:
            return None  # a nested tensor
        are_known = all(type(size) is int for size in sizes)  # the others are symbols
        return "x".join(map(str, sizes)) if are_known else None
    return None
