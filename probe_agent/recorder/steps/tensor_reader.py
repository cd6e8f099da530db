"""Parameters, gradients and buffers of the job's models, read between steps without stopping the job.

An entry of the step queue reads as much as fits into its budget and comes back after the next step. Gradients are read
where they still exist: after the optimizer's step, before the job clears them. On the training thread it takes the
budget and at most the time of one more part, a million values (0.4 ms of a CPU); on a GPU it enqueues as much as a slow
one reads in that time, and waits for nothing.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter_ns
from typing import Any, NamedTuple
from weakref import ref

from ..names import candidates
from ..torch.device import Device
from ..torch.values import Arriving, Counts, Values
from .queue import StepQueue
from .step import Step

__all__ = ["BUFFER", "GRADIENT", "PARAMETER", "Item", "TensorReader", "items_of", "unregistered"]

GRADIENT, PARAMETER, BUFFER = "gradient", "parameter", "buffer"
MAX_ITEMS = 200_000
#: Bytes that every GPU in use reads in a millisecond.
GPU_BYTES_A_MS = 100_000_000


class Item(NamedTuple):
    """One tensor of a model by the name of its module and its own; it is looked up when it is read."""

    kind: str
    module: str
    name: str
    #: Weak reference to the module, or to a parameter that only an optimizer has.
    holder: Callable[[], Any]

    def tensor(self) -> Any:
        """Return the tensor as it is now, or None."""
        held = self.holder()
        if held is not None and self.module:
            held = vars(held)["_buffers" if self.kind == BUFFER else "_parameters"].get(self.name)
        if held is None or self.kind != GRADIENT:
            return held
        return held.grad if held.is_leaf else None


class Found(NamedTuple):
    """What was read of one item, and the step after which it was."""

    item: Item
    counts: Counts
    step: int
    shape: tuple[int, ...]
    dtype: str


def items_of(
    models: Iterable[tuple[str, Any]], optimizers: Iterable[tuple[str, Any]], kinds: tuple[str, ...]
) -> Iterator[Item]:
    """Yield what there is to read, of each kind, module by module; a shared tensor once. Runs on the recorder's
    thread."""
    modules = [(path, module) for name, model in models for path, module in _walk(model, name)]
    strays = [
        (f"{name}.param_groups[{number}][{at}]", tensor)
        for name, optimizer in optimizers
        for number, group in enumerate(list(vars(optimizer).get("param_groups", ())))
        for at, tensor in enumerate(list(group.get("params", ())))
    ]
    for kind in kinds:
        seen: set[int] = set()
        for path, module in modules:
            for name, tensor in list(vars(module).get("_buffers" if kind == BUFFER else "_parameters", {}).items()):
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield Item(kind, path, name, ref(module))
        if kind != BUFFER:
            for path, tensor in strays:
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield Item(kind, "", path, ref(tensor))


def unregistered(models: Iterable[tuple[str, Any]]) -> Iterator[Item]:
    """Yield the parameters that the models hold in lists, tuples and dicts, where torch does not look for them."""
    modules = [found for name, model in models for found in _walk(model, name)]
    seen = {id(module) for _, module in modules}
    for path, module in modules:  # grows meanwhile
        for name, held in candidates.unregistered(module, path):
            below = [found for found in _walk(held, name) if id(found[1]) not in seen]
            seen.update(id(one) for _, one in below)
            for path_of, one in below:
                own = vars(one).get("_parameters")
                if own is None:
                    yield Item(PARAMETER, "", name, ref(one))  # a parameter by itself
                else:
                    modules.append((path_of, one))
                    yield from [Item(PARAMETER, path_of, parameter, ref(one)) for parameter in list(own)]


def _walk(model: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield each module once, parents before their children, without calling the job's code."""
    seen: set[int] = set()
    waiting = [(name, model)]
    while waiting:
        path, module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield path, module
            children = [(f"{path}.{key}", one) for key, one in list(vars(module).get("_modules", {}).items())]
            waiting += reversed([child for child in children if child[1] is not None])


class TensorReader:
    """An entry of the step queue that reads `items`, `budget_ms` a step; `fully` with their norms."""

    def __init__(
        self,
        queue: StepQueue,
        step: Step,
        device: Device,
        items: Iterable[Item],
        *,
        budget_ms: float,
        fully: bool,
        fail: Callable[[str, BaseException], bool],
    ) -> None:
        self._queue = queue
        self._step = step
        self._device = device
        self._values = Values(device)
        self._budget_ms = budget_ms
        self._fully = fully
        self._fail = fail
        self._left = iter(items)
        self._parts: Iterator[Any] = iter(())
        self._reading = Counts()
        self._num_bytes = 0  # enqueued on a GPU after this step
        self._enqueued: list[tuple[Counts, int, Any]] = []
        self._arriving: list[tuple[list[tuple[Counts, int]], Arriving]] = []
        self._done = allocate_lock()
        self._done.acquire()
        self.cancelled = False
        self.found: list[Found] = []
        #: Items without a tensor now, and items that cannot be read, with the reason.
        self.absent: list[Item] = []
        self.unreadable: list[tuple[Item, str]] = []
        self.is_complete = False
        self.problem = ""
        self.num_steps = 0
        self.longest_s = 0.0

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; return True once."""
        return self._done.acquire(timeout=timeout_s)

    def collect(self) -> bool:
        """Take what has arrived from the device. Return whether everything has. Runs on the recorder's thread, when
        the training thread has ended its part."""
        while self._arriving:
            of, arriving = self._arriving[0]
            rows = arriving.rows
            if rows is None:
                return False
            for (counts, num), row in zip(of, rows):
                counts.add(num, *row)
            self._arriving.pop(0)
        return True

    def run(self) -> None:
        """Read until the budget is spent; called between two steps."""
        began = perf_counter_ns()
        ends = False
        try:
            if self.cancelled:
                ends = True
            elif not self._device.is_capturing() and not self._device.is_watched():
                self.num_steps += 1
                with sys.modules["torch"].no_grad():
                    ends = self._read(began + int(self._budget_ms * 1e6))
                    self._send()
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"
            ends = True
            if self._fail("tensors", error):
                raise
        finally:
            self.longest_s = max(self.longest_s, (perf_counter_ns() - began) * 1e-9)
            if ends:
                self._parts = self._left = iter(())
                self._done.release()
            else:
                self._queue.submit(self)

    def _read(self, deadline: int) -> bool:
        """Return whether everything is read."""
        self._num_bytes = 0
        while perf_counter_ns() < deadline and self._num_bytes < self._budget_ms * GPU_BYTES_A_MS:
            part = next(self._parts, None)
            if part is None:
                item = next(self._left, None)
                if item is None:
                    self.is_complete = True
                    return True
                self._begin(item)
                continue
            read = self._values.read(part, fully=self._fully)
            if part.is_cpu:
                self._reading.add(part.numel(), *read)
            else:
                self._enqueued.append((self._reading, part.numel(), read))
                self._num_bytes += part.numel() * part.element_size()
        return False

    def _begin(self, item: Item) -> None:
        tensor = item.tensor()
        if tensor is None:
            self.absent.append(item)
            return
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).partition(".")[2]
        tensor = self._values.readable(tensor)
        if isinstance(tensor, str):
            self.unreadable.append((item, tensor))
            return
        self._reading = Counts()
        self.found.append(Found(item, self._reading, self._step.number - 1, shape, dtype))
        if tensor is not None and tensor.numel():
            self._parts = self._values.parts(tensor)

    def _send(self) -> None:
        """Have the device copy what was counted after this step, one copy for each device."""
        of_device: dict[Any, list[tuple[Counts, int, Any]]] = {}
        for entry in self._enqueued:
            of_device.setdefault(entry[2].device, []).append(entry)
        self._enqueued = []
        for entries in of_device.values():
            arriving = Arriving(sys.modules["torch"], [vector for _, _, vector in entries])
            self._arriving.append(([(counts, num) for counts, num, _ in entries], arriving))
