"""The step being taken: what the hooks of the training thread know together.

Plain attributes, written on the training thread only. A hook adds the time it saw; the optimizer hook ends the
step, writes the row and starts the next one.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any, Callable

from ..ring.table import NULL_FLOAT
from ..torch.device import Later
from .losses import Losses
from .phase_spans import FORWARD, PhaseSpans

__all__ = ["EVAL", "GENERATE", "OTHER", "TRAIN", "Step"]

#: What a module is called for, as `phase` of `python.torch_trace` has it.
#: What may come right before a forward, or in the middle of one: a batch, `zero_grad`, and that of a closure.
BATCH, ZERO_GRAD, CLOSURE = "batch", "zero_grad", "closure"
TRAIN, EVAL, GENERATE, OTHER = "train", "eval", "generate", "other"


class Step:
    """One step, from the end of one `optimizer.step()` to the end of the next; where there is no optimizer, from the
    end of one call of the outermost module to that of the next. Times in nanoseconds."""

    def __init__(self) -> None:
        #: The thread that steps; None until the first step has ended.
        self.thread: int | None = None
        #: Counted from 0; taken from the optimizer's own state where it keeps a count, so that ranks agree.
        self.number = -1
        #: Whether `number` is the job's own. Otherwise it counts from when the recorder came, so that it may differ
        #: between ranks.
        self.is_counted = False
        #: `trace.every` names it: it is sampled, unless the budget leaves it out.
        self.is_scheduled = False
        #: Likewise `trace.deep_every`, of a step that `trace.every` names.
        self.is_deep_turn = False
        self.sampled = False
        #: A sampled step that also records each module's backward and the norm of the gradients.
        self.deep = False
        self.started = 0
        #: Resident memory of the process in MiB, refreshed by our own thread.
        self.rss = 0.0
        #: The most memory that tensors have taken (on a CPU-only target: that was resident), likewise.
        self.peak = NULL_FLOAT
        #: What the hooks on modules and on the nodes of torch's graph have noted in a sampled step (windows.py).
        self.module_events: list[tuple[Any, ...]] = []
        #: Whether an optimizer has stepped: then calls without gradients are none of its steps.
        self.is_training = False
        #: How many phases of generation there have been: the steps of one number are the updates of one rollout.
        self.rollout = 0
        #: The blocks without gradients that the training thread is in, as `hooks/phases.py` has them.
        self.blocks: list[Any] = []
        #: What the outermost module, called now without gradients, is called for: `hooks/phases.py` knows.
        self.kind_of_call: Callable[[], str] = lambda: EVAL
        #: Called on the training thread between two steps: first what ends the old one (number and times are
        #: still its own), then what begins the new one (number and sampled are set).
        self.ending: list[Callable[[], None]] = []
        self.beginning: list[Callable[[], None]] = []
        #: When the phases were, where somebody wants to know.
        self.spans = PhaseSpans()
        #: Whether what may come before the forward does so in this job, as the last sampled step has shown.
        self._comes_first = {BATCH: True, ZERO_GRAD: False, CLOSURE: True}
        self.reset()

    def reset(self) -> None:
        """Begin the next step now."""
        self.started = perf_counter_ns()
        self.module_events.clear()  # where nobody has taken them: the hooks on modules may have had to go
        self.duration = 0.0  # seconds; set when the step ends
        #: False where it turns out in the middle of it that there was no such step.
        self.is_one = True
        self.data_wait = 0
        #: From what came last before the forward to where backward begins; None until a backward has begun.
        self.forward: int | None = None
        #: Inside the outermost modules, where these are seen.
        self.in_modules: int | None = None
        self.backward: int | None = None
        self.backward_ended = 0
        #: Whether backward runs now: a forward in it is a recomputation.
        self.in_backward = False
        self.micro_batches = 0
        self.batch_size = 0
        self.optimizer = 0
        self.evaluation = 0
        self.generation = 0
        #: How many stretches of evaluation and of generation have been found so far.
        self.num_without_grad = 0
        #: Whether a forward has been seen to begin since; only sampled steps see it.
        self.in_forward = False
        self._forward_from, self._spent_before = self.started, 0
        #: None where the losses of this step are not read.
        self.losses: Losses | None = None
        self.grad_norm: float | Later = NULL_FLOAT

    @property
    def spent(self) -> int:
        """What the phases beside the forward have taken so far."""
        return self.data_wait + self.evaluation + self.generation + self.optimizer + (self.backward or 0)

    def begin_forward(self, now: int) -> None:
        """Whatever has ended at `now`, what follows may be a forward."""
        self.in_forward = False
        self._forward_from, self._spent_before = now, self.spent

    def may_begin_forward(self, what: str, now: int) -> None:
        """A batch has come at `now`, or gradients were cleared: in some jobs that lies inside the forward."""
        if self.sampled:
            self._comes_first[what] = not self.in_forward
        if self._comes_first[what]:
            self.begin_forward(now)

    def end_forward(self, now: int) -> None:
        """A backward begins at `now`."""
        took = now - self._forward_from - (self.spent - self._spent_before)
        self.spans.spans.append((self._forward_from, now, FORWARD))
        self.forward = (self.forward or 0) + max(0, took)
