"""The boundary between two steps: it writes a row of `python.steps` and decides whether the next step is sampled.

The hooks that see a step end call it on the training thread; a few µs per step.
"""

from __future__ import annotations

import itertools
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns, time_ns

from ..config import Settings
from ..ring.buffer import RowBuffer
from ..ring.table import NULL_FLOAT, Column, Table
from ..torch.captures import allow_captures_elsewhere
from ..torch.device import Device, Later
from .governor import Governor, turn_of
from .job_step import JobStep
from .phase_spans import FORWARD
from .step import LONG_STEP_NS, Step

__all__ = ["StepEnds", "Steps"]

#: Events that end steps, in order of precedence: once a later one has ended a step, the earlier ones no longer do.
NOBODY, CALLS, UPDATES, OPTIMIZER, HAND = range(5)
#: Another thread becomes the one whose calls may be sampled, once that thread has been idle for this long and for this
#: multiple of the duration of a call.
MOVE_NS, MOVE_CALLS = 5_000_000_000, 4
#: Threads whose calls are remembered.
MAX_THREADS = 1_000
#: Rows that may wait for values that are still on the device.
MAX_ROWS_WAITING = 100
#: Rows packed at once; the recorder's thread packs rows that are older than flush.interval.
ROWS_A_BATCH = 64


class Steps(Table):
    name = "python.steps"
    doc = (
        "One row per optimizer step, sampled or not; without an optimizer, per parameter update after a backward;"
        " without either, per call of the outermost module on any thread. The phases data_wait to other add up to"
        " duration."
    )
    capacity = 65_536
    columns = (
        Column("step", "int", "", "step number, counted from 0"),
        Column("ts", "time", "UTC", "end of the step"),
        Column(
            "duration",
            "float",
            "s",
            "from the end of the previous step to the end of this one; where calls are steps, on the calling thread",
        ),
        Column("data_wait", "float", "s", "waiting for the DataLoader's next batch, evaluation batches excluded"),
        Column(
            "forward",
            "float",
            "s",
            "from the batch, or a later zero_grad, checkpoint, backward or start of the step, to the start of "
            "backward: the modules (their own time is in python.torch_trace), the loss and the job's code between "
            "them, evaluation excluded; without a backward, the time inside the outermost modules; NULL if not "
            "seen, as in a loop without an optimizer until its module is known, which takes some seconds",
        ),
        Column("backward", "float", "s", "inside torch.autograd.backward and grad; NULL if neither was called"),
        Column(
            "optimizer",
            "float",
            "s",
            "inside optimizer.step of all optimizers, without the forward and backward of a closure",
        ),
        Column(
            "evaluation",
            "float",
            "s",
            "blocks without gradients (no_grad, inference_mode) that call modules: validation with its batches, the"
            " forward of a teacher or reference model; also what the job names eval… or validat… with probe_agent.span;"
            " other evaluation with gradients enabled is in forward or other",
        ),
        Column(
            "generation",
            "float",
            "s",
            "blocks without gradients inside a function named generate… or rollout…, such as the rollout of an RL loop;"
            " also what the job names generat… or rollout… with probe_agent.span",
        ),
        Column(
            "other",
            "float",
            "s",
            "the rest: the job's code between a backward or an optimizer step and the next batch; includes the forward"
            " where forward is NULL",
        ),
        Column("micro_batches", "int", "", "number of backward calls"),
        Column(
            "rollout",
            "int",
            "",
            "number of steps with generation so far, this one included; steps with the same number are updates of one"
            " rollout",
        ),
        Column(
            "batch_size",
            "int",
            "",
            "samples from the DataLoader, evaluation excluded: length of the first tensor of each batch; 0 if none",
        ),
        Column("workers_started", "int", "", "worker processes that DataLoaders started in this step"),
        Column("skipped", "bool", "", "GradScaler found infinities and skipped the optimizer"),
        Column(
            "new_optimizer",
            "bool",
            "",
            "the optimizer of the steps before is gone, and what it kept (momentum, averages) with it: another one"
            " begins anew",
        ),
        Column("sampled", "bool", "", "module timings of this step are in python.torch_trace"),
        Column(
            "traced",
            "bool",
            "",
            "a question traced the job meanwhile, which takes time: profile --steps, memory --leaks, nan --hunt",
        ),
        Column(
            "loss",
            "float",
            "",
            "value that backward was called on; of several losses the sum if each was scaled by a constant, else the"
            " mean; losses before a zero_grad do not count; read at most every 2 ms, on a GPU only in sampled steps",
        ),
        Column(
            "grad_norm",
            "float",
            "",
            "2-norm of the gradients: what clip_grad_norm_ found before it clipped them, in steps whose loss is read;"
            " in a job that does not clip, of all gradients before optimizer.step, on one sampled step in"
            " trace.deep_every",
        ),
        Column(
            "clip_norm",
            "float",
            "",
            "max_norm of the job's clip_grad_norm_, in steps whose loss is read; NULL if it does not clip",
        ),
        Column("lr", "float", "", "learning rate of the first parameter group"),
        Column("allocated", "float", "MiB", "device memory in tensors; on a CPU-only target, resident memory"),
        Column("reserved", "float", "MiB", "device memory held by torch's allocator; NULL on a CPU-only target"),
        Column("peak_allocated", "float", "MiB", "highest value of allocated since the job last reset the peak"),
        Column("rss", "float", "MiB", "resident memory of the process, read every flush.interval"),
        Column(
            "counted",
            "bool",
            "",
            "step is the job's own number (step.from, a Trainer's or the optimizer's), not counted from the attach",
        ),
    )


class StepEnds:
    """The end of steps. The step in which the recorder was started is incomplete and gets no row."""

    def __init__(
        self,
        step: Step,
        settings: Settings,
        governor: Governor,
        device: Device,
        buffer: RowBuffer,
        fail: Callable[[str, BaseException], bool],
    ) -> None:
        self._step = step
        self._settings = settings
        self._governor = governor
        self._device = device
        self._buffer = buffer
        self._partial = True
        #: Another optimizer than that of the last step counts from now on.
        self._is_other = False
        self._job_step = JobStep(settings, device, get_ident, fail)
        self._last_number = -1
        self._ended_by = NOBODY
        self._waiting: deque[tuple[object, ...]] = deque()
        #: Held by the thread that writes waiting rows.
        self._writing = allocate_lock()
        #: Calls may be steps on every thread: each end draws a number. Those on one thread, the home, may be sampled;
        #: each other thread has its own step.
        self._numbers = itertools.count(1)
        self._home: int | None = None
        self._num_at_home = 0
        self._beside: dict[int, Step] = {}
        self._moving = allocate_lock()
        #: Steps that have ended since the recorder was started.
        self.num_ended = 0

    @property
    def takes_calls(self) -> bool:
        """Whether a step may end with a module's call: nothing else has ended one."""
        return self._ended_by <= CALLS

    def end(self, now: int, lr: object, count: Callable[[], int | None], skipped: bool = False) -> None:
        """End the step at `now`, with learning rate `lr`; `count()` returns the optimizer's own count of steps."""
        self._end(OPTIMIZER, now, lr, count, skipped)

    def end_by_hand(self, now: int) -> None:
        """End the step at the job's own request; nothing else ends steps any more."""
        self._end(HAND, now, NULL_FLOAT, lambda: None, False)

    @property
    def takes_updates(self) -> bool:
        """Whether a step may end with an update of parameters: no optimizer has ended one."""
        return self._ended_by <= UPDATES

    def end_call(self, began: int, ended: int) -> bool:
        """End a step with a call of the outermost module, on any thread. Return False if something else ends steps."""
        step, ident = self._step, get_ident()
        if not self.takes_calls:
            return False
        if self._home != ident and not self._is_home_now(ident, began, ended):
            self._end_beside(ident, began, ended)
            return True
        if not step.sampled:  # otherwise the module hooks record it
            step.in_modules = (step.in_modules or 0) + ended - began
        step.spans.spans.append((began, ended, FORWARD))
        return self._end(CALLS, ended, NULL_FLOAT, lambda: None, False)

    def end_update(self, now: int, missed_forward: bool) -> None:
        """End the step at `now`: the parameters have changed since the last backward. With `missed_forward`, the
        forward of the next one is over."""
        if self._end(UPDATES, now, NULL_FLOAT, lambda: None, False):
            self._step.missed_forward = missed_forward

    def _is_home_now(self, ident: int, began: int, ended: int) -> bool:
        """Return whether this call ends the home's step: true for the very first call. An idle home passes its
        unfinished step to the calling thread."""
        home, step = self._home, self._step
        is_idle = ended - step.started > max(MOVE_NS, MOVE_CALLS * (ended - began))
        if (home is not None and not is_idle) or not self._moving.acquire(False):
            return False
        try:
            if self._home != home:
                return False  # another thread was faster
            self._home = ident
            if home is None:
                return True
            self._beside.pop(ident, None)
            step.is_one = step.sampled = step.deep = False
            for end in step.ending:
                end()
            step.thread = ident
            for begin in step.beginning:
                begin()
            step.reset()
            return False
        finally:
            self._moving.release()

    def _end_beside(self, ident: int, began: int, ended: int) -> None:
        """Write a row for a call on another thread than the home, which shares only the numbers."""
        step = self._beside.get(ident)
        if step is None:
            if len(self._beside) >= MAX_THREADS:
                self._beside.clear()
            step = self._beside[ident] = Step()
            step.tracing = self._step.tracing
            step.started = began
        step.number = next(self._numbers)
        step.in_modules = ended - began
        step.duration = (ended - step.started) * 1e-9
        step.rss, step.peak = self._step.rss, self._step.peak
        self.num_ended += 1
        self._buffer.rows.append(self._row_of(step, NULL_FLOAT, False))
        if len(self._buffer.rows) >= ROWS_A_BATCH:
            self._buffer.flush()
        step.reset()
        step.started = ended

    def no_more_calls(self) -> None:
        """Stop taking calls as steps: the module is being trained, so an update or an optimizer ends steps."""
        if self.takes_calls:
            self._take_over(UPDATES)
            self._step.sampled = self._step.deep = False
            for begin in self._step.beginning:
                begin()

    def _end(self, by: int, now: int, lr: object, count: Callable[[], int | None], skipped: bool) -> bool:
        step = self._step
        if by < self._ended_by:
            return False
        if by != self._ended_by:
            self._take_over(by)
        self.num_ended += 1
        if self._device.has_gpu:
            self._device.note_current()
        if by != CALLS and (by != HAND or step.micro_batches):
            step.is_training = True
        if self._partial:
            self._partial = False
            self._first_number(by, count)
        else:
            step.duration = (now - step.started) * 1e-9
            step.skipped = skipped
            if self._is_other:
                self._is_other = False
                self._continue_number(count())
            if by != CALLS:
                self._check_number()
            for end in step.ending:
                end()
            self._row(lr, skipped)
            self._governor.note(step)
        step.spans.ends.append((now, step.number))
        self._next_step()
        step.reset()
        return True

    def other_optimizer(self) -> None:
        """Note that another training loop has begun, whose steps continue the numbers, or have a higher count."""
        if not self._partial:
            self._job_step.begin()
            self._step.is_counted = False
            self._is_other = True

    def explain_number(self) -> tuple[str, str]:
        """Return the source of step numbers, and the reason."""
        if self._job_step.is_known:
            why = "" if self._step.is_counted else "earlier steps had higher numbers, which are continued"
            return self._job_step.text, why or self._job_step.why
        if self._step.is_counted and self._job_step.why:
            return "counted on from the last known number", self._job_step.why
        if self._step.is_counted:
            return "the optimizer's count", ""
        return "counted from the attach", self._job_step.why or "no count of the job was found"

    def _first_number(self, by: int, count: Callable[[], int | None]) -> None:
        """Set the number of the step that ends now, the first known one."""
        own = None
        if by != CALLS:
            self._job_step.begin()
            own = self._job_step.read()
        if own is None:
            counted = count()
            own = None if counted is None else counted - 1
        self._step.number, self._step.is_counted = own or 0, own is not None

    def _continue_number(self, counted: int | None) -> None:
        """Number the step that ends now by the count of its optimizer, unless an earlier step had that."""
        if counted is not None and counted - 1 > self._step.number:
            self._step.number, self._step.is_counted = counted - 1, True

    def _check_number(self) -> None:
        """Give the step that ends now the job's own number, unless an earlier step had it."""
        step, own = self._step, self._job_step.read()
        if own is not None:
            step.is_counted = own > self._last_number
            if step.is_counted:
                step.number = own

    def _take_over(self, by: int) -> None:
        """Switch to another kind of event that ends steps; steps of calls or updates so far are counted anew."""
        if self._ended_by in (CALLS, UPDATES):
            self._step.is_one = False
            for end in self._step.ending:
                end()
            self._governor.forget()
            self._partial = True
        self._ended_by = by

    def close(self) -> None:
        """Write the waiting rows without the values that are still on the device."""
        while self._waiting:
            self._write(self._waiting.popleft())
        self._buffer.flush()

    def _row(self, lr: object, skipped: bool) -> None:
        row = self._row_of(self._step, lr, skipped)
        rows = self._buffer.rows
        if self._device.has_gpu:
            self._waiting.append(row)
            self._arrived()
        else:
            rows.append(row)
        if len(rows) >= ROWS_A_BATCH:
            self._buffer.flush()

    def _row_of(self, step: Step, lr: object, skipped: bool) -> tuple[object, ...]:
        has_gpu = self._device.has_gpu
        allocated, reserved = self._device.memory if has_gpu else (step.rss, NULL_FLOAT)
        duration, data_wait, backward = step.duration, step.data_wait, step.backward
        forward = step.forward if step.is_training and step.forward is not None else step.in_modules
        phases = data_wait + step.optimizer + (forward or 0) + (backward or 0) + step.evaluation + step.generation
        return (
            step.number,
            time_ns() // 1000,
            duration,
            data_wait * 1e-9,
            NULL_FLOAT if forward is None else forward * 1e-9,
            NULL_FLOAT if backward is None else backward * 1e-9,
            step.optimizer * 1e-9,
            step.evaluation * 1e-9,
            step.generation * 1e-9,
            duration - phases * 1e-9,
            step.micro_batches,
            step.rollout,
            step.batch_size,
            step.workers_started,
            skipped,
            step.new_optimizer,
            step.sampled,
            step.traced,
            NULL_FLOAT if step.losses is None else step.losses.of_step(),
            step.grad_norm,
            step.clip_norm,
            lr if lr.__class__ is float else self._device.number(lr),
            allocated,
            reserved,
            step.peak,
            step.rss,
            step.is_counted,
        )

    def _arrived(self) -> None:
        """Write, in order, the rows whose values have arrived from the device, without waiting for it.

        A thread that captures a graph does not ask: that would end the capture.
        """
        if not self._writing.acquire(False):
            return
        try:
            while self._waiting and not self._device.is_capturing():
                values = tuple(value.value if isinstance(value, Later) else value for value in self._waiting[0])
                if None in values and len(self._waiting) <= MAX_ROWS_WAITING:
                    return
                self._waiting.popleft()
                self._write(values)
        finally:
            self._writing.release()

    def arrived_late(self) -> None:
        """Write the rows whose values have arrived since, while a step takes long. Runs on the recorder's thread: a job
        that hangs shows the steps before it."""
        if self._waiting and perf_counter_ns() - self._step.started > LONG_STEP_NS:
            allow_captures_elsewhere()
            self._arrived()

    def _write(self, values: tuple[object, ...]) -> None:
        row = tuple(NULL_FLOAT if value is None or isinstance(value, Later) else value for value in values)
        self._buffer.rows.append(row)

    def _next_step(self) -> None:
        step = self._step
        settings = self._settings
        step.thread = get_ident()
        stride = 1
        if self._ended_by == CALLS:
            step.number = next(self._numbers)
            number = self._num_at_home = self._num_at_home + 1
        else:
            stride = self._job_step.stride
            self._last_number = step.number
            number = step.number = step.number + stride
        every = int(settings["trace.every"])
        step.sampled = step.deep = False
        turn = turn_of(number, every, stride) if every > 0 else None
        step.is_scheduled = turn is not None
        if turn is not None:
            deep_every = int(settings["trace.deep_every"])
            step.is_deep_turn = deep_every > 0 and turn % deep_every == 0
            step.sampled = self._governor.takes(turn)
            step.deep = step.sampled and step.is_deep_turn
        for begin in step.beginning:
            begin()
