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

#: Rows that may wait for numbers of theirs that are still on the device.
MAX_ROWS_WAITING = 100
#: Rows packed at once; our own thread packs what waits longer than flush.interval.
ROWS_A_BATCH = 64


class Steps(Table):
    name = "python.steps"
    doc = "One row for each optimizer step, sampled or not; the phases data_wait to other add up to duration."
    capacity = 65_536
    columns = (
        Column("step", "int", "", "number of the step, counted from 0"),
        Column("ts", "time", "UTC", "when the step ended"),
        Column("duration", "float", "s", "from the end of the step before to the end of this one"),
        Column("data_wait", "float", "s", "waiting for the DataLoader's next batch"),
        Column("forward", "float", "s", "inside the outermost modules; NULL where not sampled, or not seen"),
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
        self._by_hand = False
        self._waiting: deque[tuple[object, ...]] = deque()
        #: How many steps have ended since the recorder was started.
        self.num_ended = 0

    def end(self, now: int, lr: object, count: Callable[[], int], skipped: bool = False) -> None:
        """The step ended at `now`, with learning rate `lr`; `count()` is how many the job has counted."""
        if not self._by_hand:
            self._end(now, lr, count, skipped)

    def end_by_hand(self, now: int) -> None:
        """The job says so itself; then nothing else ends steps any more."""
        self._by_hand = True
        self._end(now, NULL_FLOAT, lambda: 1, False)

    def _end(self, now: int, lr: object, count: Callable[[], int], skipped: bool) -> None:
        step = self._step
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

    def close(self) -> None:
        """Write what still waits for numbers, without them."""
        self._arrived(give_up=True)
        self._buffer.flush()

    def _row(self, lr: object, skipped: bool) -> None:
        step = self._step
        allocated, reserved = self._device.memory if self._device.has_gpu else (step.rss, NULL_FLOAT)
        data_wait, of_optimizer = step.data_wait * 1e-9, step.optimizer * 1e-9
        forward = NULL_FLOAT if step.forward is None else step.forward * 1e-9
        backward = NULL_FLOAT if step.backward is None else step.backward * 1e-9
        row = (
            step.number,
            time_ns() // 1000,
            step.duration,
            data_wait,
            forward,
            backward,
            of_optimizer,
            step.duration - data_wait - of_optimizer - max(forward, 0.0) - max(backward, 0.0),
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
        if self._device.has_gpu:
            self._waiting.append(row)
            self._arrived()
        else:
            self._buffer.rows.append(row)
        if len(self._buffer.rows) >= ROWS_A_BATCH:
            self._buffer.flush()

    def _arrived(self, give_up: bool = False) -> None:
        """Rows whose numbers have arrived from the device go on, in order; nothing waits for the device."""
        while self._waiting:
            values = [value.value if isinstance(value, Later) else value for value in self._waiting[0]]
            if None in values and not give_up and len(self._waiting) <= MAX_ROWS_WAITING:
                return
            self._waiting.popleft()
            self._buffer.rows.append(tuple(NULL_FLOAT if value is None else value for value in values))

    def _next_step(self) -> None:
        step = self._step
        settings = self._settings
        step.thread = get_ident()
        step.number += 1
        every, deep_every = settings["trace.every"] * self._governor.factor, settings["trace.deep_every"]
        step.sampled = every > 0 and step.number % every == 0
        step.deep = step.sampled and deep_every > 0 and step.number % (every * deep_every) == 0
        for begin in step.beginning:
            begin()
