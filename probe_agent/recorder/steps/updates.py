"""Steps of a training loop without torch's optimizers: a backward, then changed parameters.

No hook sees `p.data -= lr * p.grad`, so a few parameters after a backward are compared with the same parameters where
the next step may begin: before a call of the outermost module, a batch, a backward or `zero_grad`. Several backwards
without a change are micro-batches of one step (docs/decisions/0011).

Runs on the training thread, twice per backward and once per call of the outermost module, while no optimizer has
stepped: 10 to 16 µs per backward for four parameters. It computes nothing and waits for no device.
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

#: Number of compared parameters, those nearest to the loss, and compared bytes of each on a CPU.
MAX_LEAVES, NUM_BYTES = 4, 64
#: Nodes of the graph that are searched for them.
MAX_NODES = 2_000
#: Backwards without a change after which other parameters are chosen: another training loop may have begun.
MAX_UNCHANGED = 100
#: Backwards searched without a result before the search ends; parameters of a sharded model cannot be compared.
MAX_SEARCHES = 20
#: Changes seen before they end steps: if the job's frames lead to no optimizer, and if they do.
NUM_SURE, NUM_SURE_BESIDE_OPTIMIZER = 2, 50


class Updates:
    """Detector that ends a step when parameters have changed since its backward."""

    def __init__(self, ends: StepEnds, device: Device) -> None:
        self._ends = ends
        self._device = device
        self._strided = sys.modules["torch"].strided
        self._leaves: list[tuple[Callable[[], Any], tuple[object, ...]]] = []
        self._num_unchanged = 0
        self._num_searches = 0
        #: Whether a backward has ended without an update so far.
        self.is_awaited = False
        self._thread: int | None = None
        #: Changes so far; each is a step once it is certain that no optimizer will step.
        self.num_seen = 0
        #: Whether that is certain.
        self.are_steps = False

    def before_backward(self, now: int, tensors: Any) -> None:
        """Note that a backward begins at `tensors`."""
        if self.is_awaited:
            self.look(now, missed_forward=True)
        if (not self._leaves and self._num_searches < MAX_SEARCHES) or self._num_unchanged > MAX_UNCHANGED:
            self._num_unchanged = 0
            self._leaves = [(ref(leaf), ()) for leaf in self._leaves_of(tensors)]
            self._num_searches = 0 if self._leaves else self._num_searches + 1

    def after_backward(self) -> None:
        """Remember the parameters after a backward."""
        if self._ends.takes_updates:
            self._thread = get_ident()
            self._leaves = [(leaf, self._look_of(leaf())) for leaf, _ in self._leaves]
            self.is_awaited = bool(self._leaves)

    def look(self, now: int, missed_forward: bool = False) -> None:
        """End the step if parameters have changed: something begins that may be the next step, or it has begun with a
        forward that was not seen."""
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
            self._ends.end_update(now, missed_forward)

    def forget(self) -> None:
        """Forget the parameters: an optimizer steps, or the recorder leaves."""
        self._leaves = []
        self.is_awaited = False

    def _look_of(self, leaf: Any) -> tuple[object, ...]:
        """Return what an update changes of a parameter: its version (in place), its storage (assigned to `.data`), its
        bytes (in place past autograd, `p.data -= …`). On a device the version of the gradient replaces the bytes: such
        loops remove or zero it."""
        if leaf is None:
            return ()
        pointer = leaf.data_ptr()
        if leaf.is_cpu:
            size = min(NUM_BYTES, leaf.numel() * leaf.element_size())
            return leaf._version, pointer, _string_at(pointer, size) if leaf.is_contiguous() else None
        return leaf._version, pointer, None if leaf.grad is None else leaf.grad._version

    def _leaves_of(self, tensors: Any) -> Iterator[Any]:
        """Yield the plain parameters that are nearest in the graph of `tensors`."""
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
            return False  # a wrapper of torch.func has no storage


def _string_at(pointer: int, size: int) -> bytes:
    """Return `size` bytes at `pointer`, whose owner the caller keeps alive."""
    import ctypes  # here: torch has loaded it, and a process without torch does not need it

    return ctypes.string_at(pointer, size)
