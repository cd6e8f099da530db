"""Steps of a training without an optimizer of torch's: a backward, then parameters that have changed.

Nothing tells of `p.data -= lr * p.grad`, so what a few parameters look like after a backward is compared with what they
look like where the next step may begin: before a call of the outermost module, a batch's backward or `zero_grad`.
Several backwards without a change in between are micro-batches of one step (docs/decisions/0011).

Runs on the training thread, twice a backward and once a call of the outermost module, as long as no optimizer has
stepped: 10 to 16 µs a backward for four parameters. Nothing is computed and no device is waited for.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

from ..torch.device import Device
from .ends import StepEnds

__all__ = ["Updates"]

#: So many parameters are compared, those nearest to the loss, and of each on a CPU so many bytes.
MAX_LEAVES, NUM_BYTES = 4, 64
#: Nodes of the graph that are looked at to find them.
MAX_NODES = 2_000
#: After so many backwards without a change others are looked for: another training may have begun.
MAX_UNCHANGED = 100
#: So many backwards are searched for parameters in vain; those of a sharded model cannot be compared.
MAX_SEARCHES = 20
#: Changes that have to be seen before they end steps, where the job's frames lead to no optimizer, and where they do.
NUM_SURE, NUM_SURE_BESIDE_OPTIMIZER = 2, 50


class Updates:
    """Tells `ends` where a step has ended because parameters have changed since its backward."""

    def __init__(self, ends: StepEnds, device: Device) -> None:
        self._ends = ends
        self._device = device
        self._strided = sys.modules["torch"].strided
        self._leaves: list[tuple[Callable[[], Any], tuple[object, ...]]] = []
        self._num_unchanged = 0
        self._num_searches = 0
        #: Whether a backward has ended whose update has not been seen.
        self.is_awaited = False
        self._thread: int | None = None
        #: Changes so far; each is a step, once we are sure that no optimizer will step.
        self.num_seen = 0
        #: Whether we are sure.
        self.are_steps = False

    def before_backward(self, now: int, tensors: Any) -> None:
        """A backward begins, from `tensors`."""
        if self.is_awaited:
            self.look(now)
        if (not self._leaves and self._num_searches < MAX_SEARCHES) or self._num_unchanged > MAX_UNCHANGED:
            self._num_unchanged = 0
            self._leaves = [(ref(leaf), ()) for leaf in self._leaves_of(tensors)]
            self._num_searches = 0 if self._leaves else self._num_searches + 1

    def after_backward(self) -> None:
        """It has ended: what the parameters look like now is what they looked like in it."""
        if self._ends.takes_updates:
            self._thread = get_ident()
            self._leaves = [(leaf, self._look_of(leaf())) for leaf, _ in self._leaves]
            self.is_awaited = bool(self._leaves)

    def look(self, now: int) -> None:
        """Something begins that may be the next step: end the one before, if parameters have changed since."""
        if self._thread != get_ident() or not self._ends.takes_updates:
            return
        if all(self._look_of(leaf()) == before for leaf, before in self._leaves):
            self._num_unchanged += 1
            return
        self.is_awaited = False
        self._num_unchanged = 0
        self.num_seen += 1
        self._leaves = [(leaf, before) for leaf, before in self._leaves if leaf() is not None]
        if self.are_steps:
            self._ends.end_update(now)

    def forget(self) -> None:
        """An optimizer steps, or we leave."""
        self._leaves = []
        self.is_awaited = False

    def _look_of(self, leaf: Any) -> tuple[object, ...]:
        """What an update changes of a parameter: its version (in place), its storage (another one in `.data`), its
        bytes (in place past autograd, `p.data -= …`). These are not read from a device: there the gradient is looked at
        instead, which such loops remove or zero."""
        if leaf is None:
            return ()
        pointer = leaf.data_ptr()
        if leaf.is_cpu:
            size = min(NUM_BYTES, leaf.numel() * leaf.element_size())
            return leaf._version, pointer, _string_at(pointer, size) if leaf.is_contiguous() else None
        return leaf._version, pointer, None if leaf.grad is None else leaf.grad._version

    def _leaves_of(self, tensors: Any) -> Iterator[Any]:
        """The plain parameters that the graph of `tensors` leads to first."""
        roots = tensors if isinstance(tensors, (list, tuple)) else (tensors,)
        waiting = [getattr(root, "grad_fn", None) for root in roots]
        seen: set[Any] = set()
        num_found = 0
        while waiting and num_found < MAX_LEAVES and len(seen) < MAX_NODES:
            node = waiting.pop(0)
            if node is None or node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if leaf is not None and self._can_be_compared(leaf):
                num_found += 1
                yield leaf
            waiting.extend(above for above, _ in node.next_functions)

    def _can_be_compared(self, leaf: Any) -> bool:
        if not self._device.is_plain(leaf) or not leaf.numel() or leaf.layout is not self._strided:
            return False
        try:
            return bool(leaf.data_ptr())
        except RuntimeError:
            return False  # one of torch.func's wrappers: it has no storage


def _string_at(pointer: int, size: int) -> bytes:
    """So many bytes from there: the caller holds whose they are."""
    import ctypes  # torch has it loaded; a process without torch needs none of this

    return ctypes.string_at(pointer, size)
