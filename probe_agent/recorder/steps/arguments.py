"""Some values of what the job gives its models and loss modules in a few steps and gets from them, and of its
DataLoaders' batches.

An entry of the step queue that watches steps (`Watcher`) while somebody waits for it. Runs on the training thread: of
each tensor on a CPU at most 8 rows of 512 values are copied, of longer rows four parts, in 15 to 30 µs. No operator of
torch is called, and of a tensor on another device nothing is read.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections import UserDict
from collections.abc import Iterator, Mapping
from itertools import islice
from time import perf_counter_ns
from types import FunctionType
from typing import Any, Callable, NamedTuple

from ..torch.device import Device
from .host_values import is_readable, rows_of
from .queue import StepQueue
from .step import Step

__all__ = ["Arguments", "Sample"]

MAX_SAMPLES, MAX_TENSORS, MAX_DEPTH = 64, 8, 2
#: The steps at which ranks begin to watch are as far apart, and how long one waits for such a step at most.
APART_NS, LATEST_NS, MOST_APART = 600_000_000, 800_000_000, 64
#: Name of a model's output: of several the first that has a gradient.
_OUTPUT = "output"
#: Classes around the module that is meant, by where they are defined, and how many of them at most.
_WRAPPERS = ("torch.nn.parallel.", "torch.distributed.", "torch._dynamo.", "peft.", "deepspeed.")
_MAX_WRAPPERS = 4


class Sample(NamedTuple):
    """One tensor; of a batch it has neither module nor library. `rows` are values of its first rows."""

    call: int
    module: str | None
    library: str | None
    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    rows: tuple[bytes, ...]


class Arguments:
    """Watches `num_steps` steps, unless somebody else watches the values of these.

    Of several ranks (`in_common`) each begins at a step whose number is a multiple of a power of two, so that those
    that are asked one after the other watch the same steps.
    """

    def __init__(
        self,
        queue: StepQueue,
        step: Step,
        device: Device,
        num_steps: int,
        fail: Callable[[str, BaseException], bool],
        in_common: bool = False,
    ) -> None:
        torch: Any = sys.modules["torch"]
        self.samples: list[Sample] = []
        self.is_over = False
        self._queue = queue
        self._step = step
        self._device = device
        self._left = num_steps
        self._is_to_begin = in_common
        self._first_ns = self._num_waited = 0
        self._fail = fail
        self._is_tracing = torch._C._is_tracing
        self._has_grad = torch.is_grad_enabled
        self._thread: int | None = None
        self._outermost: Any = None
        self._num_inside = self._num_calls = 0

    def leave(self) -> None:
        """Watch no more; callable from any thread."""
        self.is_over = True
        self._thread = None
        if self._step.watcher is self:
            self._step.watcher = None

    # Between two steps, on the training thread.

    def run(self) -> None:
        is_free = self._step.watcher is None or self._step.watcher is self
        if self.is_over or not is_free or self._left == 0 or len(self.samples) >= MAX_SAMPLES:
            self.leave()
            return
        if self._is_to_begin and not self._begins(perf_counter_ns()):
            self._queue.submit(self)
            return
        self._is_to_begin = False
        self._left -= 1
        self._outermost, self._num_inside = None, 0
        self._step.watcher, self._thread = self, get_ident()
        self._queue.submit(self)
        if self.is_over:  # whoever asked has left meanwhile
            self.leave()

    def _begins(self, now: int) -> bool:
        """Return whether to begin with this step: by the length of the steps before, the multiple is chosen."""
        if not self._num_waited:
            self._first_ns, self._num_waited = now, 1
            return False
        pace = max(1, (now - self._first_ns) // self._num_waited)
        self._num_waited += 1
        apart = 1 << (min(MOST_APART, max(1, APART_NS // pace)).bit_length() - 1)
        return self._step.number % apart == 0 or now - self._first_ns > LATEST_NS

    # In a step. None of these raises into the job.

    def before(self, module: Any, args: Any) -> None:
        if self._thread != get_ident() or self._device.is_compiling() or self._is_tracing():
            return
        if self._outermost is None:
            self._outermost = module
        elif self._outermost is module:
            self._num_inside += 1

    def after(self, module: Any, args: Any, *more: Any) -> None:
        if self._outermost is not module or self._thread != get_ident() or self._device.is_compiling():
            return
        if self._num_inside:
            self._num_inside -= 1
            return
        self._outermost = None
        if self._step.in_backward or not self._has_grad() or self._is_tracing():
            return
        if self._device.is_watched():  # by a mode of the job, which sees each attribute of a tensor that is read
            return
        try:
            kwargs: Mapping[str, Any] = more[0] if len(more) == 2 else {}
            inner = _inner(module)
            named = [*zip(_names(inner, len(args)), args), *kwargs.items()]
            tensors = [found for name, value in named for found in self._tensors(value, name)]
            outputs = (one for _, one in self._tensors(more[-1], _OUTPUT) if one.requires_grad and one.dim() > 1)
            self._note(type(inner), tensors[: MAX_TENSORS - 1] + [(_OUTPUT, one) for one in islice(outputs, 1)])
        except Exception as error:
            if self._fail("arguments", error):
                raise

    def batch(self, batch: Any) -> None:
        if self._thread != get_ident() or self._device.is_watched():
            return
        try:
            self._note(None, list(self._tensors(batch, "")))
        except Exception as error:
            if self._fail("arguments", error):
                raise

    def loss(self, loss: Any) -> None:
        """Nothing: it is no argument."""

    def _note(self, kind: type | None, tensors: list[tuple[str, Any]]) -> None:
        self._num_calls += 1
        for name, tensor in tensors[: min(MAX_TENSORS, MAX_SAMPLES - len(self.samples))]:
            self.samples.append(
                Sample(
                    self._num_calls,
                    None if kind is None else kind.__qualname__,
                    None if kind is None else kind.__module__.partition(".")[0],
                    name,
                    tuple(tensor.shape),
                    str(tensor.dtype).partition(".")[2],
                    tensor.device.type,
                    rows_of(tensor),
                )
            )

    def _tensors(self, value: Any, name: str, depth: int = MAX_DEPTH) -> Iterator[tuple[str, Any]]:
        """Yield the plain tensors in a value with their names: `labels` of a dict, `[1]` of a tuple."""
        if self._device.is_plain(value):
            if is_readable(value):
                yield name or "[0]", value
        elif depth:
            # By their types, and past what a class of the job makes of them.
            held = vars(value).get("data") if issubclass(type(value), UserDict) else value
            items: Any = ()
            if issubclass(type(held), dict):
                items = list(dict.items(held))
            elif kind := next((one for one in (tuple, list) if issubclass(type(held), one)), None):
                items = ((f"{name}[{at}]", one) for at, one in enumerate(islice(kind.__iter__(held), MAX_TENSORS)))
            for key, one in islice(items, MAX_TENSORS):
                yield from self._tensors(one, key if type(key) is str else "an item", depth - 1)


def _inner(module: Any) -> Any:
    """Return the module that is meant, inside of DDP, a compiled module, adapters."""
    for _ in range(_MAX_WRAPPERS):
        children = [one for one in list(vars(module).get("_modules", {}).values()) if one is not None]
        if len(children) != 1 or not type(module).__module__.startswith(_WRAPPERS):
            break
        (module,) = children
    return module


def _names(module: Any, num: int) -> list[str]:
    """Return the names of the first `num` arguments of a module's forward."""
    forward = type(module).forward
    known: tuple[str, ...] = ()
    if type(forward) is FunctionType:
        known = forward.__code__.co_varnames[1 : forward.__code__.co_argcount]
    return [known[at] if at < len(known) else f"[{at}]" for at in range(num)]
