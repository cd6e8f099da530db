"""The step being taken: what the hooks of the training thread know together.

Plain attributes, written on the training thread only. A hook adds the time it saw; the optimizer hook ends the
step, writes the row and starts the next one.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any, Callable

from .device import Later
from .ring.table import NULL_FLOAT

__all__ = ["EVAL", "GENERATE", "OTHER", "TRAIN", "Step"]

#: What a module is called for, as `phase` of `python.torch_trace` has it.
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
        #: Class of the optimizer that counts the steps.
        self.optimizer_class = ""
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
        self.reset()

    def reset(self) -> None:
        """Begin the next step now."""
        self.started = perf_counter_ns()
        self.duration = 0.0  # seconds; set when the step ends
        #: False where it turns out in the middle of it that there was no such step.
        self.is_one = True
        self.data_wait = 0
        self.forward: int | None = None
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
        self.loss: float | Later = NULL_FLOAT
        self.grad_norm: float | Later = NULL_FLOAT
