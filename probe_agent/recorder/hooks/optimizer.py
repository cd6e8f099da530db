"""Steps of a training loop, which end at `optimizer.step()`.

The optimizer that steps first counts the steps, until it is gone or no longer steps; others add to its `optimizer`
time. If its hooks are never called (its step is compiled) a step ends with `zero_grad`; if GradScaler skips the
optimizer, with `GradScaler.update`.

torch iterates over its table of hooks while it calls them, so that table is never changed: it is replaced by one that
yields torch's hooks and the recorder's, and restored on detach. It looks empty, also to Dynamo, which compiles the code
that calls the hooks.

Runs on the training thread, once before and once after each `optimizer.step()`: a few clock reads and one row.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections import OrderedDict
from collections.abc import Mapping
from time import perf_counter_ns
from types import FrameType
from typing import Any, Callable
from weakref import ref

from ..no_rows import why_no_steps
from ..ring.table import NULL_FLOAT
from ..source import Awaited, Recorder
from ..source import Source as BaseSource
from ..steps.ends import Steps
from ..steps.gradient_reader import version_of
from ..steps.phase_spans import OPTIMIZER
from ..steps.step import CLOSURE, ZERO_GRAD
from ..torch.optimizer_names import OptimizerNames
from ..torch.patches import Patches

__all__ = ["Source"]

#: Steps or zero_grads of other optimizers after which one of them counts the steps: another training loop has begun.
MAX_OTHERS = 100
#: Steps of the optimizer that counts in each of which another one has stepped twice or more, in training: that one
#: counts from then on. Which one was seen first differs from rank to rank.
OUTPACED = 3


class HookTable(OrderedDict):  # type: ignore[type-arg]
    """Replacement of one of torch's global hook tables: changes go to torch's own, reading adds the recorder's hook.

    Iterating yields a snapshot, so changes by other threads do not disturb a running step.
    """

    def __init__(self, torchs: OrderedDict[int, Callable[..., object]], ours: Callable[..., object]) -> None:
        super().__init__()
        self._torchs: Any = torchs
        self._ours: tuple[Callable[..., object], ...] = (ours,)

    def values(self) -> Any:
        return (*self._torchs.values(), *self._ours) if self._torchs else self._ours

    def __setitem__(self, key: int, hook: Callable[..., object]) -> None:
        self._torchs[key] = hook
        # The job's handle refers weakly to this table; torch's table keeps it alive, so that the hook can be removed.
        self._torchs.__dict__.setdefault("handles_refer_to", {})[id(self)] = self

    def __delitem__(self, key: int) -> None:
        del self._torchs[key]

    def close(self) -> None:
        """Drop the recorder's hook: a handle of the job may keep the table."""
        self._ours = ()

    def __contains__(self, key: object) -> bool:
        return key in self._torchs


class Source(BaseSource):
    name = "steps"
    needs = ("torch", "torch.optim.optimizer", "torch.nn.modules.module", "torch.amp.grad_scaler")
    tables = (Steps,)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._step = recorder.step
        self._ends = recorder.ends
        self._cost = recorder.cost(self.name)
        self._modules_cost = recorder.cost("torch_trace")
        self._primary: Callable[[], Any] | None = None
        #: The one before is gone: the job has made it anew.
        self._is_new = False
        #: Whether torch calls the hooks for the primary optimizer; not if its step is compiled.
        self._has_hooks = False
        self._num_others = 0
        #: Steps of other optimizers since the last step that was counted, by the optimizer's id, and how many counted
        #: steps in a row had two or more of one.
        self._others: dict[int, int] = {}
        self._num_outpaced = 0
        self._note = recorder.seen.optimizers.note
        self._clearings = recorder.seen.clearings
        #: Number of backward calls in this step when an optimizer cleared their gradients, by its id.
        self._cleared_at: dict[int, int] = {}
        self._began = 0
        self._spent_before = 0  # in other phases, when the optimizer's step began
        self._depth = 0  # nested calls of `step`
        #: Whether an outermost call of `step` has been seen: the attach may be inside one that calls others.
        self._is_outermost_known = False
        self._patches = Patches()
        self._tables: list[HookTable] = []
        self._num_ended_at_update = 0
        self._device = recorder.device
        self._names = OptimizerNames(lambda: recorder.step.thread)

    def start(self) -> None:
        module = sys.modules["torch.optim.optimizer"]
        for name, hook in (
            ("_global_optimizer_pre_hooks", self._before),
            ("_global_optimizer_post_hooks", self._after),
        ):
            self._tables.append(HookTable(getattr(module, name), hook))
            self._patches.put(module, name, self._tables[-1])
        self._patch(module.Optimizer, "zero_grad", self._before_zero_grad, self._after_zero_grad)
        self._patch(sys.modules["torch.amp.grad_scaler"].GradScaler, "update", None, self._after_update)

    def _patch(
        self, owner: Any, name: str, before: Callable[[Any], None] | None, after: Callable[[Any], None] | None
    ) -> None:
        """Call `before` and `after` around a method of one of torch's classes, with its object."""

        def make(original: Any) -> Any:
            def ours(this: Any, *args: Any, **kwargs: Any) -> Any:
                if before is not None:
                    before(this)
                answer = original(this, *args, **kwargs)
                if after is not None:
                    after(this)
                return answer

            return ours

        self._patches.wrap(owner, name, make)

    def tick(self) -> None:
        self._ends.arrived_late()

    def awaited(self) -> Mapping[str, Awaited]:
        return {} if self.recorder.has_rows(Steps) else {Steps.name: why_no_steps(self.recorder)}

    def stop(self) -> None:
        self._patches.restore()
        while self._tables:
            self._tables.pop().close()
        self._primary = None
        self._names.forget()
        self._ends.close()

    def _before(self, optimizer: Any, args: object, kwargs: object) -> None:
        if self._device.is_compiling() or self._is_elsewhere(optimizer):
            return
        if self._depth and _is_inside(sys._getframe(1)):
            self._depth += 1
            return
        if not (self._is_outermost_known or self._is_outermost(sys._getframe(1))):
            return
        self._depth = 1
        self._began = perf_counter_ns()
        step = self._step
        try:
            if step.deep and step.grad_norm == NULL_FLOAT:
                step.grad_norm = self._device.grad_norm(optimizer)
                self._cost.ns += perf_counter_ns() - self._began
                self._began = perf_counter_ns()
            if self._cleared_at and self._cleared_at.get(id(optimizer)) == step.micro_batches:
                self._clearings.of(optimizer).early += 1
            step.begin_forward(self._began)
            self._spent_before = step.spent + (step.forward or 0)
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise

    def _after(self, optimizer: Any, args: object, kwargs: object) -> None:
        if self._device.is_compiling():
            return
        if not (self._is_outermost_known or self._is_outermost(sys._getframe(1))):
            return
        now = perf_counter_ns()
        step = self._step
        try:
            if self._depth and not self._is_elsewhere(optimizer):
                self._depth -= 1
                if self._depth:
                    return
                # A closure runs forward and backward in here; the rest is the optimizer's own.
                of_closure = step.spent + (step.forward or 0) - self._spent_before
                took = max(0, now - self._began - of_closure)
                step.optimizer += took
                step.spans.spans.append((self._began, now, OPTIMIZER))
                step.begin_forward(now)
                name = self._names.of(optimizer)
                if step.sampled:
                    step.module_events.append((name, now, took))
            if self._counts(optimizer, steps=True):
                self._has_hooks = True
                self._end(optimizer, now)
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise

    def _is_outermost(self, caller: FrameType) -> bool:
        """Return whether the call of `step` that has called the hook is not part of one that had begun before the
        attach, at whose end the step ends. Asked until there was one."""
        self._is_outermost_known = not _is_inside(caller)
        return self._is_outermost_known

    def _is_elsewhere(self, optimizer: Any) -> bool:
        """Return whether this thread trains another model than the one whose steps are counted on another thread."""
        if self._step.thread in (None, get_ident()) or self._primary is None:
            return False
        return self._primary() not in (None, optimizer)

    def _before_zero_grad(self, optimizer: Any) -> None:
        """End a step if the optimizer's hooks are never called (its step is compiled); in the middle of a step, drop
        its losses so far."""
        step = self._step
        if self._device.is_compiling():
            return
        try:
            noted = self._clearings.of(optimizer)
            before, noted.version = noted.version, self._last_version(optimizer)
            if not step.micro_batches:
                return
            if step.thread == get_ident():
                self._cleared_at[id(optimizer)] = step.micro_batches
            if not self._depth and self._counts(optimizer) and not self._has_hooks:
                self._end(optimizer, perf_counter_ns())
            elif step.losses is not None and self._primary is not None and self._primary() is optimizer:
                # Weights that were moved since belong to another point, as the second one of SAM: nothing is lost.
                noted.parts += step.losses.are_parts and noted.version == before
                step.losses.clear()
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise

    def _last_version(self, optimizer: Any) -> int | None:
        """Return how often the last parameter of an optimizer was changed; None where that is not counted, or code of
        the job would have to tell it."""
        groups = vars(optimizer).get("param_groups")
        parameters = groups[-1].get("params") if type(groups) is list and groups and type(groups[-1]) is dict else None
        if type(parameters) is not list or not parameters or not self._device.is_plain(parameters[-1]):
            return None
        return version_of(parameters[-1])

    def _after_zero_grad(self, optimizer: Any) -> None:
        step = self._step
        if step.thread == get_ident() and not self._device.is_compiling():
            step.may_begin_forward(CLOSURE if self._depth else ZERO_GRAD, perf_counter_ns())

    def _counts(self, optimizer: Any, *, steps: bool = False) -> bool:
        """Return whether this optimizer's steps are counted; `steps` tells that it has stepped."""
        self._note(optimizer)
        primary = self._primary() if self._primary is not None else None
        if primary is not optimizer:
            self._num_others += 1
            if primary is not None and self._num_others < MAX_OTHERS and not (steps and self._outpaces(optimizer)):
                return False
            if self._primary is not None:
                self._is_new = primary is None
                self._ends.other_optimizer()
            self._primary = ref(optimizer)
            self._has_hooks = False
            self._num_outpaced = 0
            self._others.clear()
        elif steps:
            is_outpaced = max(self._others.values(), default=0) > 1 and self._step.micro_batches > 1
            self._num_outpaced = self._num_outpaced + 1 if is_outpaced else 0
            self._others.clear()
        self._num_others = 0
        return True

    def _outpaces(self, optimizer: Any) -> bool:
        """Count a step of another optimizer. Return whether it takes several steps for each that is counted."""
        self._others[id(optimizer)] = num = self._others.get(id(optimizer), 0) + 1
        return num > 1 and self._num_outpaced >= OUTPACED

    def _after_update(self, scaler: Any) -> None:
        """End a step that GradScaler has skipped: no optimizer has stepped since the scale was last updated."""
        try:
            primary = self._primary() if self._primary is not None and self._has_hooks else None
            if primary is not None and self._ends.num_ended == self._num_ended_at_update and self._step.micro_batches:
                self._end(primary, perf_counter_ns(), skipped=True)
            self._num_ended_at_update = self._ends.num_ended
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise

    def _end(self, optimizer: Any, now: int, skipped: bool = False) -> None:
        if self._is_new:
            self._is_new, self._step.new_optimizer = False, len(optimizer.state) > 0
        lr = optimizer.param_groups[0].get("lr")
        of_modules = self._modules_cost.ns
        if self._cleared_at:  # another optimizer may step after the end of this step, and before the next backward
            last = self._step.micro_batches
            self._cleared_at = {key: 0 for key, at in self._cleared_at.items() if at == last}
        self._ends.end(now, lr, lambda: self._count(optimizer), skipped)
        self._cost.calls += 1
        self._cost.ns += self._step.started - now - (self._modules_cost.ns - of_modules)

    def _count(self, optimizer: Any) -> int | None:
        """Return the number of steps that this optimizer has taken, the last one included, if it counts on the host."""
        state = next(iter(optimizer.state.values()), None)
        count: Any = state.get("step") if isinstance(state, dict) else None
        if self._device.is_plain(count) and count.device.type != "cpu":
            return None
        number = self._device.number(count)
        return int(number) if number.__class__ is float and number >= 1.0 else None


def _is_inside(caller: FrameType) -> bool:
    """Return whether torch's frame that called the hook is nested in another one: a `step` inside a `step`."""
    frame = caller.f_back
    while frame is not None and frame.f_code is not caller.f_code:
        frame = frame.f_back
    return frame is not None
