"""Hunt for the module that makes the first value that is not finite, in forward or in backward.

An entry of the step queue that watches steps (`Watcher`) until one comes to a bad end. It looks at the batch, the
inputs and outputs of every module call, the loss, the gradients on their way through the graph, and at the end of the
step the gradients of all parameters (finiteness.py).

Gradients are seen by hooks on the nodes of torch's graph, which are removed a step later; the graph does not grow, and
no tensor is kept. Runs on the training thread: on a CPU about 40 µs per module call of a small model, with its
backward (benchmarks.nan_hunt), and the time of reading the values.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter_ns, time
from typing import Any

from ..torch.device import Device
from ..torch.values import tensors_in
from .finiteness import Finiteness, Seen, Sent, status_of
from .queue import StepQueue
from .step import Step
from .tensor_reader import Item
from .watched_step import (
    BATCH,
    GRAD,
    GRADIENT,
    INPUT,
    LOSS,
    OUTPUT,
    Call,
    Event,
    Origin,
    WatchedStep,
    is_compiled,
    modules_below,
    origin_of,
)

__all__ = ["NanHunt"]

#: Limits of one step: calls and looks, beyond which it is not watched; tensors of one value.
MAX_EVENTS, MAX_TENSORS = 50_000, 16
#: Steps whose values are on their way from a device; meanwhile no other step is watched.
MAX_IN_FLIGHT = 8
#: Keys of events that did no harm.
MAX_USUAL = 10_000
#: Steps after which a batch that was not finite is forgotten: loaders fetch batches ahead.
BATCH_STEPS = 16


class NanHunt:
    """Watches every `every`-th step, `num_steps` of them if that is not None, until `found` is set or `cancelled`."""

    def __init__(
        self,
        queue: StepQueue,
        step: Step,
        device: Device,
        gradients: Iterable[Item],
        *,
        every: int,
        num_steps: int | None,
        budget_ms: float,
        fail: Callable[[str, BaseException], bool],
    ) -> None:
        torch: Any = sys.modules["torch"]
        self._queue = queue
        self._step = step
        self._device = device
        self._gradients = list(gradients)
        self._every = every
        self._left = num_steps
        self._budget_ns = int(budget_ms * 1e6)
        self._fail = fail
        self._finiteness = Finiteness(device, budget_ms)
        self._is_compiling = device.is_compiling
        self._is_tracing = torch._C._is_tracing
        self._has_grad = torch.is_grad_enabled
        #: Whether the running step is watched, on this thread.
        self._thread: int | None = None
        self._seen = WatchedStep(-1)
        self._stack: list[int] = []
        self._numbers: dict[int, int] = {}
        self._handles: dict[int, Any] = {}
        self._handles_before: list[Any] = []
        self._in_flight: deque[tuple[WatchedStep, Sent, int]] = deque()
        self._usual: set[object] = set()
        self._bad_batch_at = -BATCH_STEPS
        self._cancelled = False
        self._done = allocate_lock()
        self._done.acquire()
        self.problem = ""
        self.found: Origin | None = None
        self.found_step = -1
        self.found_at = 0.0
        self.num_watched = self.num_calls = self.num_unseen = 0
        self.first_step: int | None = None
        #: The newest watched step that came to no harm.
        self.last_good: int | None = None
        self.is_watching = False
        self._bad_at = 0.0

    @property
    def num_unreadable(self) -> int:
        """Tensors that cannot be read."""
        return self._finiteness.num_unreadable

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; return True once."""
        return self._done.acquire(timeout=timeout_s)

    def cancel(self) -> None:
        """Look at nothing any more; the hooks are removed when the step ends."""
        self._cancelled = True
        self._thread = None

    def leave(self) -> None:
        """Remove what is left, also if no step ends any more."""
        self.cancel()
        if self._step.watcher is self:
            self._step.watcher = None
        for _ in range(2):
            self._leave_nodes()
        self._finiteness.begin()
        self._seen = WatchedStep(-1)

    # Between two steps, on the training thread.

    def run(self) -> None:
        """End the watched step, and decide about the next one."""
        is_over = True
        try:
            if self._device.is_capturing():
                self._forget_step()
            else:
                if self._thread is not None:
                    self._end_step()
                self.collect()
            is_over = self._cancelled or self.found is not None or self._left == 0
            if is_over:
                self.leave()
            else:
                self._begin_step()
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"
            is_over = True
            self.leave()
            if self._fail("nan_hunt", error):
                raise
        finally:
            if is_over:
                self._done.release()
            else:
                self._queue.submit(self)

    def _begin_step(self) -> None:
        self._leave_nodes()
        step = self._step
        is_watched = (
            step.number % self._every == 0
            and len(self._in_flight) < MAX_IN_FLIGHT
            and not self._device.is_capturing()
            and not self._device.is_watched()
        )
        step.watcher = self if is_watched else None
        if is_watched:
            self._seen = WatchedStep(step.number)
            self._stack.clear()
            self._numbers.clear()
            self._finiteness.begin()
            self._bad_at = 0.0
            self.is_watching = True
            self._thread = step.thread

    def _end_step(self) -> None:
        seen, step = self._seen, self._step
        began = perf_counter_ns()
        if step.micro_batches:
            for item in self._gradients:
                if perf_counter_ns() - began > self._budget_ns:
                    seen.num_unseen += 1
                    continue
                gradient = item.tensor()
                if gradient is not None:
                    name = f"{item.module}.{item.name}" if item.module else item.name
                    self._note(GRADIENT, name, self._finiteness.look(gradient))
        self._thread = None
        self._stack.clear()
        seen.num_unseen += self._finiteness.num_unseen
        sent = self._finiteness.sent()
        self._finiteness.begin()
        seen.skipped = step.skipped
        seen.number = step.number - 1
        self.num_watched += 1
        self.num_calls += len(seen.calls)
        if self.first_step is None:
            self.first_step = seen.number
        if self._left is not None:
            self._left -= 1
        self._seen = WatchedStep(-1)
        self._in_flight.append((seen, sent, int((self._bad_at or time()) * 1e9)))

    def _forget_step(self) -> None:
        """Leave a step that ended while a CUDA graph is captured: whatever is enqueued or asked of CUDA would end the
        capture, and the job with it."""
        self._thread = None
        self._stack.clear()
        self._finiteness.begin()
        self._seen = WatchedStep(-1)

    def _leave_nodes(self) -> None:
        """Remove the hooks of nodes that are a step old: a job that keeps its losses keeps their graph."""
        for handle in self._handles_before:
            handle.remove()
        self._handles_before = list(self._handles.values())
        self._handles.clear()

    # On the training thread, or on a thread of the recorder once the training thread has left.

    def collect(self) -> bool:
        """Judge the steps whose values have arrived. Return whether all have."""
        while self._in_flight and self.found is None:
            seen, sent, at = self._in_flight[0]
            arrived = [(numbers, arriving.rows) for numbers, arriving in sent]
            if any(rows is None for _, rows in arrived):
                return False
            self._in_flight.popleft()
            status: dict[int, int] = {}
            for numbers, rows in arrived:
                assert rows is not None
                for number, low, high in zip(numbers, rows[::2], rows[1::2]):
                    status[number] = status_of(low, high)
            if status:
                for event in seen.events:
                    event.status = max([event.status, *(status[number] for number in event.pending)])
                for call in seen.calls:
                    own = [name for name, pending in call.pending if any(status[number] for number in pending)]
                    call.own += [name for name in own if name not in call.own]
            self._judge(seen, at * 1e-9)
        return True

    def _judge(self, seen: WatchedStep, at: float) -> None:
        self.num_unseen += seen.num_unseen
        bad = seen.bad()
        if any(event.what == BATCH for event in bad):
            self._bad_batch_at = seen.number
        if not bad or not seen.is_harmed:
            self.last_good = seen.number
            if len(self._usual) < MAX_USUAL:
                self._usual.update(seen.key(event) for event in bad if event.what != BATCH)
            return
        is_batch_bad = seen.number - self._bad_batch_at < BATCH_STEPS
        self.found, self.found_step, self.found_at = origin_of(seen, self._usual, is_batch_bad), seen.number, at

    # Of a watched step, in the middle of the job's code.

    def before(self, module: Any, args: Any) -> None:
        """Look at the input of a module's call."""
        if self._looks_away():
            return
        try:
            seen, has_grad, stack = self._seen, self._has_grad(), self._stack
            if not stack and not has_grad and self._step.is_training:
                self._step.kind_of_call(module)
            if len(seen.events) > MAX_EVENTS:
                return
            is_recomputed = self._step.in_backward
            number = self._numbers.get(id(module), 0)
            if not is_recomputed:
                number = self._numbers[id(module)] = number + 1
            index = len(seen.calls)
            seen.calls.append(Call(module, stack[-1] if stack else None, number, has_grad, is_recomputed))
            stack.append(index)
            tensors = self._tensors(args)
            if not is_recomputed:
                self._note(INPUT, index, self._finiteness.look_at(tensors))
            self._watch_nodes(tensors, index, seen.takers)
        except Exception as error:
            if self._broke(error):
                raise

    def after(self, module: Any, args: Any, *more: Any) -> None:
        """Look at the output of a module's call, and at its keyword arguments."""
        if self._looks_away():
            return
        try:
            seen, stack = self._seen, self._stack
            if not any(seen.calls[index].module is module for index in stack):
                return
            index = stack.pop()
            while seen.calls[index].module is not module:
                index = stack.pop()
            call = seen.calls[index]
            if len(more) == 2 and more[0]:
                named = self._tensors(more[0])
                if not call.is_recomputed:
                    self._add_input(index, self._finiteness.look_at(named))
                self._watch_nodes(named, index, seen.takers)
            tensors = self._tensors(more[-1])
            if not call.is_recomputed:
                status, pending = self._finiteness.look_at(tensors)
                self._note(OUTPUT, index, (status, pending))
                if status or pending:
                    self._look_at_own(call)
            self._watch_nodes(tensors, index, seen.makers)
        except Exception as error:
            if self._broke(error):
                raise

    def _looks_away(self) -> bool:
        """Return whether this call is not looked at: on another thread, compiled, or captured into a CUDA graph, which
        would replay what is enqueued here."""
        if self._is_compiling() or self._thread != get_ident() or self._is_tracing():
            return True
        return self._device.is_capturing()

    def batch(self, batch: Any) -> None:
        """Look at a batch of a DataLoader."""
        self._look_once(BATCH, batch)

    def loss(self, loss: Any) -> None:
        """Look at what backward was called on."""
        self._look_once(LOSS, loss)

    def _look_once(self, what: str, value: Any) -> None:
        if self._looks_away():
            return
        try:
            self._note(what, None, self._finiteness.look_at(self._tensors(value)))
        except Exception as error:
            if self._broke(error):
                raise

    def _broke(self, error: Exception) -> bool:
        self._thread = None
        self._cancelled = True
        self.problem = f"{type(error).__name__}: {error}"
        return self._fail("nan_hunt", error)

    def _note(self, what: str, subject: Any, seen: Seen) -> None:
        status, pending = seen
        self._seen.events.append(Event(what, subject, status, pending))
        if status and not self._bad_at:
            self._bad_at = time()

    def _add_input(self, index: int, seen: Seen) -> None:
        """Add keyword arguments to what was seen of a call's input."""
        if seen[0] or seen[1]:
            for event in reversed(self._seen.events):
                if event.what == INPUT and event.subject == index:
                    event.status = max(event.status, seen[0])
                    event.pending += seen[1]
                    return

    def _look_at_own(self, call: Call) -> None:
        """Look at the parameters and buffers of a module whose output is not finite, or not yet known."""
        everything = modules_below(call.module) if is_compiled(call.module) else (("", call.module),)
        for path, module in everything:
            for kind in ("_parameters", "_buffers"):
                for name, tensor in list(vars(module).get(kind, {}).items()):
                    if tensor is not None:
                        status, pending = self._finiteness.look(tensor)
                        name = f"{path}.{name}".lstrip(".")
                        if status:
                            call.own.append(name)
                        elif pending:
                            call.pending.append((name, pending))

    def _tensors(self, value: Any) -> list[Any]:
        found = []
        for tensor in tensors_in(value, self._device.is_tensor):
            found.append(tensor)
            if len(found) == MAX_TENSORS:
                break
        return found

    def _watch_nodes(self, tensors: list[Any], index: int, users: dict[int, list[int]]) -> None:
        """Hook the nodes that produced `tensors`, and note that a call uses them."""
        for tensor in tensors:
            if tensor.requires_grad:
                try:
                    node = tensor.grad_fn
                except RuntimeError:
                    continue  # a view without a gradient since its base was changed in place
                if node is not None:
                    position = node._sequence_nr()
                    users.setdefault(position, []).append(index)
                    if position not in self._handles:
                        self._handles[position] = node.register_prehook(self._telling(position))

    def _telling(self, position: int) -> Callable[[Any], None]:
        def tell(gradients: Any) -> None:
            if (
                self._is_compiling()
                or self._device.is_capturing()
                or self._thread is None
                or not self._step.in_backward
                or len(self._seen.events) > MAX_EVENTS
            ):
                return
            try:
                self._note(GRAD, position, self._finiteness.look_at([one for one in gradients if one is not None]))
            except Exception as error:
                if self._broke(error):
                    raise

        return tell
