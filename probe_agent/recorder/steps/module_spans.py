"""Rows of `python.torch_trace` from the events of the module hooks: nesting and duration of each forward.

Runs at the end of a sampled step on the training thread, or on the recorder's thread while a step takes long: about 1
µs per module call. For backward see backward_spans.py.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from time import perf_counter_ns, time_ns
from typing import Any

from ..ring.buffer import RowBuffer
from ..ring.table import NULL_FLOAT
from ..torch.device import Device
from .backward_spans import BackwardSpans
from .module_names import ModuleNames
from .step import OTHER, TRAIN, Step

__all__ = ["ModuleSpans"]

#: Shapes that get a text: inputs of varying length would fill the ring with texts.
MAX_SHAPES = 1_000
#: Sampled steps that may wait for their device times; older ones go without.
MAX_STEPS_WAITING = 8
_DEVICE_DURATION = 8  # its index in a row


class ModuleSpans:
    """Spans of the running sampled step. `buffer` is that of `python.torch_trace`."""

    def __init__(self, step: Step, device: Device, buffer: RowBuffer) -> None:
        self._step = step
        self._device = device
        self._buffer = buffer
        self._names = ModuleNames(buffer.number)
        self._forward, self._backward, self._optimizer = map(buffer.number, ("forward", "backward", "step"))
        #: Events of the hooks that are not processed yet: (module, ns, mark, position) at the start of a forward,
        #: (module, ns, mark, allocated, device, position, shapes, recomputed) at its end, (ns, position) for
        #: `BackwardSpans.note`, (name, ns, duration) of an optimizer, (phase,) for the calls that follow. Always the
        #: same list.
        self.events = step.module_events
        #: Phase that was noted last.
        self.noted_phase = ""
        self._phase = TRAIN
        self.num_calls = 0
        self._replaying = allocate_lock()
        #: Held by the thread that asks the device for times.
        self._asking = allocate_lock()
        #: Running forwards, as `_replay` stores them.
        self._stack: list[list[Any]] = []
        self._spans = BackwardSpans()
        self._devices: dict[Any, int] = {None: 0}
        self._shapes: dict[tuple[Any, ...], int] = {(): 0}
        self._seq = 0
        self._epoch = 0  # offset from perf_counter_ns to the time of day
        self._allocated = NULL_FLOAT
        self._marked: list[tuple[list[Any], Any, Any]] = []
        self._waiting: deque[list[tuple[list[Any], Any, Any]]] = deque()

    def begin(self, allocated: float) -> None:
        """Begin a sampled step, with `allocated` MiB in use."""
        self._allocated = allocated
        self._epoch = time_ns() - perf_counter_ns()
        self._spans.begin_step(self._step.number)

    def note_phase(self, phase: str) -> None:
        """Note that the following calls belong to another phase."""
        self.noted_phase = phase
        self.events.append((phase,))

    def end(self) -> None:
        """End the sampled step: write rows of its forwards, backward and optimizers."""
        if not self._step.is_one:
            self.events.clear()
        self.replay()
        self._spans.end_step()
        self._stack.clear()
        self._seq = 0
        self.noted_phase, self._phase = "", TRAIN
        if self._marked:
            self._waiting.append(self._marked)
            self._marked = []

    def replay(self) -> None:
        """Turn the events so far into spans, and finished spans into rows."""
        with self._replaying:
            events = self.events[:]
            del self.events[: len(events)]
            self._replay(events)

    def _replay(self, events: list[tuple[Any, ...]]) -> None:
        # One loop over local variables: this is most of the cost of a sampled step.
        stack, known = self._stack, self._names.known
        devices, known_shapes = self._devices, self._shapes
        allocated, seq, epoch, num_calls = self._allocated, self._seq, self._epoch, 0
        step, forward, reserved, is_deep = self._step.number, self._forward, self._device.memory[1], self._step.deep
        add = self._buffer.rows.append
        train, phase = self._buffer.number(TRAIN), self._buffer.number(self._phase)
        for event in events:
            if len(event) == 1:
                self._phase = event[0]
                phase = self._buffer.number(self._phase)
                continue
            if len(event) == 4:
                module, now, mark, position = event
                entry = known.get(id(module)) or self._names.learn(module, stack[-1][0] if stack else None)
                stack.append([module, entry[0], now, 0, mark, allocated, position, entry[3]])
                continue
            if len(event) == 2:
                for name, ended, duration, own in self._spans.note(*event):
                    self._seq = seq
                    self._host_row(name, self._backward, ended, duration, own)
                    seq += 1
                continue
            if len(event) == 3:
                optimizer, ended, took = event
                self._seq = seq
                self._host_row(self._buffer.number(optimizer), self._optimizer, ended, took, took)
                seq += 1
                continue
            module, now, mark, allocated, device, position, shapes, recomputed = event
            while stack and stack[-1][0] is not module:
                lost = stack.pop()  # ended by a BaseException, after which torch calls no hook
                if stack:
                    stack[-1][3] += lost[3]
            if not stack:
                continue
            _, name, began, children, began_mark, allocated_before, began_at, is_compiled = stack.pop()
            duration = now - began
            if stack:
                stack[-1][3] += duration
            elif not recomputed and (self._phase in (TRAIN, OTHER) or not self._step.is_training):
                self._step.in_modules = (self._step.in_modules or 0) + duration
            if position > began_at and (is_deep or not (stack or recomputed)):
                self._spans.add(began_at, position, name)
            of_device = devices.get(device)
            if of_device is None:
                of_device = devices[device] = self._buffer.number(str(device))
            of_shapes = known_shapes.get(shapes)
            if of_shapes is None:
                of_shapes = self._learn_shapes(shapes)
            row = (
                step,
                (now + epoch) // 1000,
                seq,
                name,
                forward,
                duration * 1e-9,
                (duration - children) * 1e-9,
                of_device,
                NULL_FLOAT,
                allocated,
                allocated - allocated_before,
                reserved,
                of_shapes,
                is_compiled or module._compiled_call_impl is not None,
                recomputed,
                train if recomputed else phase,
            )
            seq += 1
            num_calls += 1
            if mark is None or began_mark is None:
                add(row)
            else:
                self._marked.append((list(row), began_mark, mark))
        self.num_calls += num_calls
        self._allocated, self._seq = allocated, seq

    def _learn_shapes(self, shapes: tuple[Any, ...]) -> int:
        """Return the number of the text of `shapes`; 0 (NULL) if there are too many distinct ones."""
        if len(self._shapes) >= MAX_SHAPES:
            return 0
        number = self._buffer.number(", ".join("x".join(map(str, shape)) for shape in shapes))
        self._shapes[shapes] = number
        return number

    def _host_row(self, name: int, stage: int, ended: int, duration: int, own: int) -> None:
        """Write a row with times of the host only."""
        self._buffer.rows.append(
            (
                self._step.number,
                (ended + self._epoch) // 1000,
                self._seq,
                name,
                stage,
                duration * 1e-9,
                own * 1e-9,
                0,
                NULL_FLOAT,
                NULL_FLOAT,
                NULL_FLOAT,
                self._device.memory[1],
                0,
                False,
                False,
                self._buffer.number(TRAIN),
            )
        )
        self._seq += 1

    @property
    def is_waiting(self) -> bool:
        """Whether rows wait for their device times."""
        return bool(self._waiting)

    def device_times(self) -> None:
        """Write rows whose device times have arrived, without waiting for the device.

        Called on the training thread, and on the recorder's while a step takes long. A thread that captures a graph
        does not ask: that would end the capture.
        """
        if not self._waiting or self._device.is_capturing() or not self._asking.acquire(False):
            return
        try:
            while self._waiting:
                rows, is_over = self._waiting[0], len(self._waiting) > MAX_STEPS_WAITING
                for row, begin, end in reversed(rows):  # the last one comes last
                    duration = self._device.between(begin, end)
                    if duration is None and not is_over:
                        return
                    row[_DEVICE_DURATION] = NULL_FLOAT if duration is None else duration
                self._arrived()
        finally:
            self._asking.release()

    def give_up(self) -> None:
        """Write the waiting rows without their device times."""
        while self._waiting:
            self._arrived()

    def _arrived(self) -> None:
        self._buffer.rows.extend([tuple(row) for row, _, _ in self._waiting.popleft()])
