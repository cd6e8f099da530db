"""The operations that a loss is made of, as a tree to walk: rows of `torch.autograd_graph`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .rule import Row

__all__ = ["SQL", "Operation", "operations"]

SQL = "FROM torch.autograd_graph ORDER BY backward_call, number"
#: They hand on the values that they are given: copies, other types, other shapes of as many values.
_HAND_ON = frozenset((
    "Alias", "Clone", "Contiguous", "Permute", "ReshapeAlias", "Select", "Slice", "Squeeze", "T", "ToCopy", "Transpose",
    "UnsafeView", "Unsqueeze", "View",
))  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """An operation with those that its operands come from; `shape` is None where it is not known."""

    name: str
    shape: tuple[int, ...] | None
    num_operands: int
    num_constants: int
    #: As which operand of its user it comes, and of a softmax, the dimension that adds up to 1.
    operand: int = 0
    dim: int | None = None
    #: What a division by one number divides by, where it is known.
    divisor: float | None = None
    made_from: list[Operation] = field(default_factory=list)

    @property
    def source(self) -> Operation | None:
        """The operation that made the first operand, past all that only hand it on; None where it is not known."""
        found = self.made_from[0] if self.made_from else None
        while found is not None and found.name in _HAND_ON:
            found = found.made_from[0] if found.made_from else None
        return found


def operations(rows: Iterable[Row]) -> Iterator[Operation]:
    """Yield the operations of all losses, nearest first."""
    known: dict[tuple[int, int], Operation] = {}
    for row in rows:
        shape = _shape(row["shape"])
        one = Operation(
            row["operation"], shape, row["operands"], row["constants"], row["operand"], row["dim"], row["divisor"]
        )
        known[row["backward_call"], row["number"]] = one
        if row["user"] is not None:
            known[row["backward_call"], row["user"]].made_from.append(one)
    yield from known.values()


def _shape(text: str | None) -> tuple[int, ...] | None:
    return None if text is None else tuple(int(size) for size in text.split("x") if size)
