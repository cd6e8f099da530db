"""What happens where one step ends and the next begins: a row of `python.steps`, and who samples is told.

Called on the training thread by the hooks that see the end of a step; a few µs.
"""

from __future__ import annotations

from _thread import get_ident
from collections import deque
from collections.abc import Callable
from time import time_ns

from .config import Settings
from .device import Device, Later
from .governor import Governor
from .ring.buffer import RowBuffer
from .ring.table import NULL_FLOAT, Column, Table
from .step import Step

__all__ = ["StepEnds", "Steps"]

#: Who ends steps; whoever is further to the right does so instead of those before.
NOBODY, CALLS, OPTIMIZER, HAND = range(4)
#: Rows that may wait for numbers of theirs that are still on the device.
MAX_ROWS_WAITING = 100
#: Rows packed at once; our own thread packs what waits longer than flush.interval.
ROWS_A_BATCH = 64


class Steps(Table):
    name = "python.steps"
    doc = (
        "One row for each optimizer step, sampled or not; where there is no optimizer, for each call of the outermost"
        " module. The phases data_wait to other add up to duration."
    )
    capacity = 65_536
    columns = (
        Column("step", "int", "", "number of the step, counted from 0"),
        Column("ts", "time", "UTC", "when the step ended"),
        Column("duration", "float", "s", "from the end of the step before to the end of this one"),
        Column("data_wait", "float", "s", "waiting for the DataLoader's next batch"),
        Column("forward", "float", "s", "inside the outermost modules; NULL if not seen, in training unless sampled"),
        Column("backward", "float", "s", "inside torch.autograd.backward; NULL where it was not called"),
        Column("optimizer", "float", "s", "inside optimizer.step, of all optimizers, after a closure's backward"),
        Column("other", "float", "s", "the rest of the step; the forward too, where that is NULL"),
        Column("micro_batches", "int", "", "how often backward was called"),
        Column("batch_size", "int", "", "samples from the DataLoader: length of each batch's first tensor; 0 if none"),
        Column("skipped", "bool", "", "GradScaler found infinities and left the optimizer out"),
        Column("sampled", "bool", "", "module timings of this step are in python.torch_trace"),
        Column(
            "loss",
            "float",
            "",
            "the scalar backward was last called on; read every 2 ms at most, on a GPU in sampled steps only",
        ),
        Column(
            "grad_norm",
            "float",
            "",
            "2-norm of all gradients before optimizer.step; one sampled step in trace.deep_every",
        ),
        Column("lr", "float", "", "learning rate of the first parameter group"),
        Column("allocated", "float", "MiB", "device memory in tensors; on a CPU-only target the resident memory"),
        Column("reserved", "float", "MiB", "device memory held by torch's allocator; NULL on a CPU-only target"),
        Column("peak_allocated", "float", "MiB", "the most that allocated has been since the job last reset the peak"),
        Column("rss", "float", "MiB", "resident memory of the process, read every flush.interval"),
    )


class StepEnds:
    """Ends steps. The step that the recorder was started in is not whole, so it gets no row."""

    def __init__(self, step: Step, settings: Settings, governor: Governor, device: Device, buffer: RowBuffer) -> None:
        self._step = step
        self._settings = settings
        self._governor = governor
        self._device = device
        self._buffer = buffer
        self._partial = True
        self._ended_by = NOBODY
        self._waiting: deque[tuple[object, ...]] = deque()
        #: How many steps have ended since the recorder was started.
        self.num_ended = 0

    @property
    def takes_calls(self) -> bool:
        """Whether a step may end where a module's call does: nothing else has ended one."""
        return self._ended_by <= CALLS

    def end(self, now: int, lr: object, count: Callable[[], int], skipped: bool = False) -> None:
        """The step ended at `now`, with learning rate `lr`; `count()` is how many the job has counted."""
        self._end(OPTIMIZER, now, lr, count, skipped)

    def end_by_hand(self, now: int) -> None:
        """The job says so itself; then nothing else ends steps any more."""
        self._end(HAND, now, NULL_FLOAT, lambda: 1, False)

    def end_call(self, now: int, forward: int) -> bool:
        """The outermost module's call ended at `now` after `forward` ns. False where something else ends steps."""
        if self.takes_calls and not self._step.sampled:  # else the hooks have it
            self._step.forward = (self._step.forward or 0) + forward
        return self._end(CALLS, now, NULL_FLOAT, lambda: 1, False)

    def no_more_calls(self) -> None:
        """What was called is being trained: wait for an optimizer."""
        if self.takes_calls:
            self._take_over(OPTIMIZER)
            self._step.sampled = self._step.deep = False
            for begin in self._step.beginning:
                begin()

    def _end(self, by: int, now: int, lr: object, count: Callable[[], int], skipped: bool) -> bool:
        step = self._step
        if by < self._ended_by:
            return False
        if by != self._ended_by:
            self._take_over(by)
        self.num_ended += 1
        if self._partial:
            self._partial = False
            step.number = count() - 1
            step.is_counted = step.number > 0
        else:
            step.duration = (now - step.started) * 1e-9
            for end in step.ending:
                end()
            self._row(lr, skipped)
            self._governor.note(step)
        self._next_step()
        step.reset()
        return True

    def _take_over(self, by: int) -> None:
        """Calls that came before a training were none of its steps: it is counted anew."""
        if self._ended_by == CALLS:
            self._step.is_one = False
            for end in self._step.ending:
                end()
            self._governor.forget()
            self._partial = True
        self._ended_by = by

    def close(self) -> None:
        """Write what still waits for numbers, without them."""
        while self._waiting:
            self._write(self._waiting.popleft())
        self._buffer.flush()

    def _row(self, lr: object, skipped: bool) -> None:
        step = self._step
        has_gpu = self._device.has_gpu
        allocated, reserved = self._device.memory if has_gpu else (step.rss, NULL_FLOAT)
        duration, data_wait, forward, backward = step.duration, step.data_wait, step.forward, step.backward
        phases = data_wait + step.optimizer + (forward or 0) + (backward or 0)
        row = (
            step.number,
            time_ns() // 1000,
            duration,
            data_wait * 1e-9,
            NULL_FLOAT if forward is None else forward * 1e-9,
            NULL_FLOAT if backward is None else backward * 1e-9,
            step.optimizer * 1e-9,
            duration - phases * 1e-9,
            step.micro_batches,
            step.batch_size,
            skipped,
            step.sampled,
            step.loss,
            step.grad_norm,
            lr if lr.__class__ is float else self._device.number(lr),
            allocated,
            reserved,
            step.peak,
            step.rss,
        )
        rows = self._buffer.rows
        if has_gpu:
            self._waiting.append(row)
            self._arrived()
        else:
            rows.append(row)
        if len(rows) >= ROWS_A_BATCH:
            self._buffer.flush()

    def _arrived(self) -> None:
        """Rows whose numbers have arrived from the device go on, in order; nothing waits for the device.

        Nor is it asked while it captures a graph: that would end the capture.
        """
        while self._waiting and not self._device.is_capturing():
            values = tuple(value.value if isinstance(value, Later) else value for value in self._waiting[0])
            if None in values and len(self._waiting) <= MAX_ROWS_WAITING:
                return
            self._waiting.popleft()
            self._write(values)

    def _write(self, values: tuple[object, ...]) -> None:
        row = tuple(NULL_FLOAT if value is None or isinstance(value, Later) else value for value in values)
        self._buffer.rows.append(row)

    def _next_step(self) -> None:
        step = self._step
        settings = self._settings
        step.thread = get_ident()
        step.number += 1
        every = settings["trace.every"] * self._governor.factor
        step.sampled = step.deep = False
        if every > 0 and step.number % every == 0:
            deep_every = settings["trace.deep_every"]
            step.sampled, step.deep = True, deep_every > 0 and step.number % (every * deep_every) == 0
        for begin in step.beginning:
            begin()
