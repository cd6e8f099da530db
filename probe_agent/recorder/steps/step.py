"""The running step: state shared by the hooks of the training thread.

Plain attributes, written on the training thread only: a hook adds the time it measured; the end of the step writes the
row and starts the next step. Costs attribute reads and writes. Other threads only mark it, as one that is traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any, Callable, Protocol

from ..ring.table import NULL_FLOAT
from ..torch.device import Later
from .graph_reader import GraphReader
from .losses import Losses
from .phase_spans import FORWARD, PhaseSpans

__all__ = ["EVAL", "GENERATE", "LONG_STEP_NS", "OTHER", "TRAIN", "Step", "Watcher"]

#: Duration after which the recorder's thread writes rows of an unfinished step, and those that wait for the device.
LONG_STEP_NS = 500_000_000

#: Events right before a forward, or in the middle of one: a batch, `zero_grad`, `zero_grad` of a closure, a checkpoint.
BATCH, ZERO_GRAD, CLOSURE, CHECKPOINT = "batch", "zero_grad", "closure", "checkpoint"
#: Phases of a module call, the values of `phase` in `python.torch_trace`.
TRAIN, EVAL, GENERATE, OTHER = "train", "eval", "generate", "other"


class Watcher(Protocol):
    """Looks at the values of a step on the training thread; none of its methods raises into the job."""

    def before(self, module: Any, args: Any) -> None:
        """Look at the input of a module's call."""

    def after(self, module: Any, args: Any, *more: Any) -> None:
        """Look at the output of a module's call, behind its keyword arguments."""

    def batch(self, batch: Any) -> None:
        """Look at a batch of a DataLoader."""

    def loss(self, loss: Any) -> None:
        """Look at what backward was called on."""


class Step:
    """One step, from the end of one `optimizer.step()` to the end of the next; without an optimizer, between the ends
    of two calls of the outermost module. Times in nanoseconds."""

    def __init__(self) -> None:
        #: Training thread; None until the first step has ended.
        self.thread: int | None = None
        #: Counted from 0; taken from the optimizer's state if that has a count, so that ranks agree.
        self.number = -1
        #: Whether `number` is the job's own. Otherwise it counts from the attach, and may differ between ranks.
        self.is_counted = False
        #: Whether `trace.every` selects it: it is sampled, unless the budget excludes it.
        self.is_scheduled = False
        #: Whether `trace.deep_every` selects it too.
        self.is_deep_turn = False
        self.sampled = False
        #: A sampled step that also records each module's backward and the norm of the gradients.
        self.deep = False
        self.started = 0
        #: Questions that trace the job now; written by the threads of the recorder that answer them.
        self.tracing: set[str] = set()
        #: Resident memory of the process in MiB, refreshed by the recorder's thread.
        self.rss = 0.0
        #: Peak of memory in tensors (on a CPU-only target, of resident memory), likewise.
        self.peak = NULL_FLOAT
        #: Events of the hooks on modules and graph nodes in a sampled step (module_spans.py).
        self.module_events: list[tuple[Any, ...]] = []
        #: Who looks at the values of this step; set between steps.
        self.watcher: Watcher | None = None
        #: Read the graphs of the losses before backward, while somebody asks for that.
        self.graph_readers: list[GraphReader] = []
        #: Calls of `torch.autograd.grad` without `create_graph` since the last backward.
        self.plain_grads = 0
        #: Whether hooks on all modules report the calls of this step.
        self.calls_are_seen = False
        #: Whether an optimizer has stepped: calls without gradients are then not steps.
        self.is_training = False
        #: Number of phases of generation: steps with the same number are updates of one rollout.
        self.rollout = 0
        #: Blocks without gradients that the training thread is in (hooks/phases.py).
        self.blocks: list[Any] = []
        #: Returns the phase of a call of this outermost module without gradients (hooks/phases.py).
        self.kind_of_call: Callable[[Any], str] = lambda module: EVAL
        #: Begin a phase that the job has named, on the training thread, and end it: `leave_phase(enter_phase(kind))`.
        self.enter_phase: Callable[[str], object] = lambda kind: None
        self.leave_phase: Callable[[object], None] = lambda block: None
        #: Called on the training thread between two steps: first `ending` (number and times are those of the old step),
        #: then `beginning` (number and sampled are those of the new one).
        self.ending: list[Callable[[], None]] = []
        self.beginning: list[Callable[[], None]] = []
        #: Spans of the phases, if a source keeps them.
        self.spans = PhaseSpans()
        #: Whether each event comes before the forward in this job, as the last sampled step has shown.
        self._comes_first = {BATCH: True, ZERO_GRAD: False, CLOSURE: True, CHECKPOINT: True}
        self.reset()

    def reset(self) -> None:
        """Start the next step now."""
        self.started = perf_counter_ns()
        self.module_events.clear()  # events remain if the module hooks had to be removed
        self.duration = 0.0  # seconds; set when the step ends
        #: False if it turns out that this was not a step.
        self.is_one = True
        #: A question has traced the job during this step.
        self.traced = bool(self.tracing)
        #: GradScaler has skipped the optimizer.
        self.skipped = False
        #: The optimizer that ended the step before is gone, and this one has a state of its own.
        self.new_optimizer = False
        self.data_wait = 0
        #: From the last event before the forward to the start of backward; None until a backward has begun.
        self.forward: int | None = None
        #: It had begun before this step was seen to begin.
        self.missed_forward = False
        #: Time inside the outermost modules, if these are seen.
        self.in_modules: int | None = None
        self.backward: int | None = None
        self.backward_ended = 0
        #: Whether backward runs now: a forward in it is a recomputation.
        self.in_backward = False
        self.micro_batches = 0
        self.batch_size = 0
        #: Worker processes that loaders have started for it.
        self.workers_started = 0
        self.optimizer = 0
        self.evaluation = 0
        self.generation = 0
        #: Number of blocks of evaluation and generation so far.
        self.num_without_grad = 0
        #: Whether a forward has begun since; known only in sampled steps.
        self.in_forward = False
        self._forward_from, self._spent_before = self.started, 0
        #: None if the losses of this step are not read.
        self.losses: Losses | None = None
        self.grad_norm: float | Later = NULL_FLOAT
        #: What the job clips the gradients to.
        self.clip_norm = NULL_FLOAT

    @contextmanager
    def traced_by(self, question: str) -> Iterator[None]:
        """Mark the steps until the end of the block, those at both ends of it included."""
        self.tracing.add(question)
        self.traced = True
        try:
            yield
        finally:
            self.tracing.discard(question)

    @property
    def spent(self) -> int:
        """Time of the phases other than forward so far."""
        return self.data_wait + self.evaluation + self.generation + self.optimizer + (self.backward or 0)

    def begin_forward(self, now: int) -> None:
        """Note that a forward may begin at `now`."""
        self.in_forward = False
        self._forward_from, self._spent_before = now, self.spent

    def may_begin_forward(self, what: str, now: int) -> None:
        """Note a batch, cleared gradients or a checkpoint, at `now`: in some jobs these come inside the forward."""
        if self.sampled:
            self._comes_first[what] = not self.in_forward
        if self._comes_first[what]:
            self.begin_forward(now)

    def end_forward(self, now: int) -> None:
        """Note that a backward begins at `now`."""
        if self.missed_forward:
            return
        took = now - self._forward_from - (self.spent - self._spent_before)
        self.spans.spans.append((self._forward_from, now, FORWARD))
        self.forward = (self.forward or 0) + max(0, took)
