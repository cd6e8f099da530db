"""Blocks without gradients in a training loop: `evaluation`, `generation` and `rollout` of `python.steps`.

A block of `no_grad`, `inference_mode` and the like counts if an outermost module is called in it; clipping gradients or
averaging weights calls none. torch keeps its fast path for modules: a hook exists only from the start of a block to the
first call in it, and in sampled steps the hooks of `python.torch_trace` report the call. The names of the functions
around that call tell, once per block, whether it generates. A span that the job has named after a phase is a block of
that phase too, with gradients or without (hooks/spans.py).

The call is also noted as an evaluation of its module, as is the first call after `model.eval()`
(steps/evaluations.py).

Runs on the training thread once an optimizer has stepped: 3 µs per block, 8 µs if it calls a module.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any

from ..source import Recorder
from ..source import Source as BaseSource
from ..steps.evaluations import CALIBRATE
from ..steps.phase_spans import EVALUATION, GENERATION, GRADIENTS
from ..steps.step import EVAL, GENERATE
from ..torch.dynamo import AroundCompile, has_compiled
from ..torch.module_hooks import OurHook
from ..torch.patches import Patches

__all__ = ["Source"]

#: Prefixes of the names of functions that generate, leading underscores ignored.
GENERATES = ("generate", "rollout", "collect_rollout")
#: Kind of a block inside a module's forward, which is a part of that forward.
INSIDE = "inside"


class Block:
    """A block of the job's code with gradients disabled, or enabled again inside such a block."""

    __slots__ = ("began", "context", "inner", "is_named", "is_off", "kind", "num_samples", "wait")

    def __init__(self, context: object, is_off: bool, named: str = "") -> None:
        self.context = context
        self.is_off = is_off
        #: EVAL, GENERATE or INSIDE; empty until a module is called.
        self.kind = named
        #: The job has said which phase it is.
        self.is_named = bool(named)
        #: Time of the blocks inside it, in nanoseconds.
        self.inner = 0
        #: Wait and samples of batches in it that were counted as training data.
        self.wait = self.num_samples = 0
        self.began = perf_counter_ns()


class Source(BaseSource):
    name = "phases"
    needs = ("torch", "torch.autograd.grad_mode", "torch.nn.modules.module", "torch.optim.optimizer")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._step = recorder.step
        self._cost = recorder.cost(self.name)
        self._modules: Any = sys.modules["torch.nn.modules.module"]
        self._call = self._modules.Module._call_impl.__code__
        self._is_grad_enabled = sys.modules["torch"].is_grad_enabled
        self._patches = Patches()
        #: Of `Module.eval`: compiled code that calls it must not depend on it.
        self._eval = Patches()
        self._hides_hook = Patches()
        self._hook = OurHook(self._modules._global_forward_pre_hooks)
        self._is_armed = self._is_compiling = False
        #: The recorder goes: what the training thread is about to install, it removes again.
        self._is_stopped = False
        self._around_compile = AroundCompile(self._leave, self._come_back)
        self._blocks: list[Block] = recorder.step.blocks
        self._evaluations = recorder.evaluations

    def start(self) -> None:
        modes: Any = sys.modules["torch.autograd.grad_mode"]
        modes_off: tuple[tuple[Any, Callable[[Any], bool]], ...] = (
            (modes.no_grad, lambda context: True),
            (modes.inference_mode, lambda context: bool(context.mode)),
            (modes.set_grad_enabled, lambda context: not context.mode),
            (modes.enable_grad, lambda context: False),
        )
        for owner, is_off in modes_off:
            self._patches.wrap(owner, "__enter__", partial(self._entering, is_off=is_off))
            self._patches.wrap(owner, "__exit__", self._leaving)
        self._patch_eval()
        self._step.kind_of_call = self._kind_of_call
        self._step.enter_phase, self._step.leave_phase = self._enter_named, self._leave_named
        self._step.ending.append(self._end_step)

    def stop(self) -> None:
        self._is_stopped = True
        self._patches.restore()
        self._eval.restore()
        if self._end_step in self._step.ending:
            self._step.ending.remove(self._end_step)
        self._step.kind_of_call = lambda module: EVAL
        self._step.enter_phase, self._step.leave_phase = lambda kind: None, lambda block: None
        self._around_compile.forget()
        self._disarm()
        self._blocks.clear()

    # On the training thread.

    def _entering(self, original: Any, is_off: Callable[[Any], bool]) -> Any:
        step, blocks = self._step, self._blocks

        def __enter__(context: Any) -> Any:
            # Before the original: an exception of the job's signal handlers here must not leave gradients disabled.
            if step.thread == get_ident() and step.is_training and not step.in_backward:
                try:
                    if is_off(context):
                        self._begin(context)
                    elif blocks:
                        blocks.append(Block(context, False))
                except Exception as error:
                    if self.recorder.fail(self.name, error):
                        raise
            return original(context)

        return __enter__

    def _leaving(self, original: Any) -> Any:
        step, blocks = self._step, self._blocks

        def __exit__(context: Any, *exception: Any) -> Any:
            try:
                if blocks and step.thread == get_ident():
                    self._leave_block(context)
            except Exception as error:
                if self.recorder.fail(self.name, error):
                    raise
            finally:
                answer = original(context, *exception)
            return answer

        return __exit__

    def _patch_eval(self) -> None:
        if not self._eval:
            self._eval.wrap(self._modules.Module, "eval", self._evaluating)
        if self._is_stopped:  # meanwhile
            self._eval.restore()

    def _evaluating(self, original: Any) -> Any:
        step = self._step

        def eval_(module: Any) -> Any:
            if step.thread == get_ident() and step.is_training and not step.in_backward:
                try:
                    self._evaluations.begin()
                    self._arm()
                except Exception as error:
                    if self.recorder.fail(self.name, error):
                        raise
            return original(module)

        return eval_

    def _begin(self, context: Any) -> None:
        blocks = self._blocks
        above = blocks[-1].kind if blocks else ""
        blocks.append(Block(context, True))
        if above != GENERATE and above != INSIDE:
            self._arm()

    def _enter_named(self, kind: str) -> Block | None:
        step = self._step
        if not step.is_training or step.in_backward:
            return None
        block = Block(None, True, kind)
        block.context = block
        if kind == GENERATE and not step.generation and not any(one.kind == GENERATE for one in self._blocks):
            step.rollout += 1
        self._blocks.append(block)
        return block

    def _leave_named(self, block: object) -> None:
        if self._blocks:
            self._leave_block(block)

    def _leave_block(self, context: Any) -> None:
        blocks = self._blocks
        if blocks[-1].context is not context:
            if not any(block.context is context for block in blocks):
                return  # entered before the recorder started, or in backward
            while blocks[-1].context is not context:
                self._close(blocks.pop(), perf_counter_ns())
        self._close(blocks.pop(), perf_counter_ns())
        if not blocks:
            self._disarm()
        else:
            self._look_for_call()

    def _close(self, block: Block, now: int) -> None:
        """Add a block's time to its phase; `_blocks` are the blocks around it."""
        step, whole = self._step, now - block.began
        if block.kind == EVAL:
            step.evaluation += whole - block.inner
            step.spans.spans.append((block.began, now, EVALUATION))
        elif block.kind == GENERATE:
            step.generation += whole - block.inner
            step.spans.spans.append((block.began, now, GENERATION))
        elif block.is_off:
            whole = block.inner  # the rest belongs to the block around it
        else:
            step.spans.spans.append((block.began, now, GRADIENTS))
        if block.kind in (EVAL, GENERATE):
            step.data_wait -= block.wait
            step.batch_size -= block.num_samples
        elif self._blocks:
            self._blocks[-1].wait += block.wait
            self._blocks[-1].num_samples += block.num_samples
        if self._blocks:
            self._blocks[-1].inner += whole

    def _end_step(self) -> None:
        """Split blocks that go on past the end of the step."""
        try:
            self._disarm()
            self._evaluations.awaits_call = False
            blocks, now = self._blocks, self._step.started + round(self._step.duration * 1e9)
            still_open = blocks[:]
            while blocks:
                self._close(blocks.pop(), max(now, still_open[len(blocks)].began))
            for block in still_open:
                block.began, block.inner, block.wait, block.num_samples = now, 0, 0, 0
            blocks += still_open
            self._around_compile.watch()
            if self._is_stopped:  # meanwhile
                self._around_compile.forget()
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise

    # First call of a module in a block.

    def _look_for_call(self) -> None:
        """Arm the hook if the kind of the innermost block is unknown: the next call of a module tells it."""
        blocks = self._blocks
        if blocks and blocks[-1].is_off and not blocks[-1].kind:
            self._arm()

    def _arm(self) -> None:
        if self._is_armed or self._is_compiling or self._step.calls_are_seen:
            return
        modules = self._modules
        if not modules._has_any_global_hook():
            # As in hooks/modules.py: a compiled module would warn about the recorder's hook.
            self._hides_hook.put(modules, "_has_any_global_hook", lambda: False)
        elif has_compiled():
            return
        self._is_armed = True
        self._hook.put(self._called)
        if self._is_stopped:  # meanwhile, and may have been disarmed before the hook was there
            self._is_armed = True
            self._disarm()

    def _disarm(self) -> None:
        if self._is_armed:
            self._is_armed = False
            self._hook.take()
            self._hides_hook.restore()

    def _leave(self) -> None:
        self._is_compiling = True
        self._eval.restore()
        self._disarm()

    def _come_back(self) -> None:
        self._is_compiling = False
        try:
            self._patch_eval()
            if self._step.thread == get_ident():
                self._look_for_call()
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise

    def _called(self, module: Any, args: object) -> None:
        """Handle a call of a module while the hook is armed."""
        if self._step.thread != get_ident():
            return
        try:
            self._disarm()
            if not self._is_grad_enabled():
                self._kind_of_call(module)
            elif self._evaluations.awaits_call:
                self._evaluations.called(module)
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise

    def _kind_of_call(self, module: Any) -> str:
        """Return the phase of a module's call without gradients, and set the kind of the blocks around it."""
        blocks, step = self._blocks, self._step
        if blocks and blocks[-1].kind:
            return EVAL if blocks[-1].kind == INSIDE else blocks[-1].kind
        began = perf_counter_ns()
        by_frames, is_calibration = self._kind_by_frames()
        kind = next((block.kind for block in reversed(blocks) if block.is_named), "") or by_frames
        own = [block for block in blocks if not block.kind and block.is_off]
        for block in own[-1:] if kind != EVAL else own[:1]:
            block.kind = kind
            step.num_without_grad += kind != INSIDE
            if kind == GENERATE and not step.generation:
                step.rollout += 1
            if kind == EVAL:
                self._evaluations.called_without_gradients(module, is_calibration)
        self._cost.calls += 1
        self._cost.ns += perf_counter_ns() - began
        return EVAL if kind == INSIDE else kind

    def _kind_by_frames(self) -> tuple[str, bool]:
        """Return the kind by the functions around a call, and whether one of them averages batch norm anew."""
        kind, num_calls, is_calibration = EVAL, 0, False
        frame: Any = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code is self._call:
                num_calls += 1
                if num_calls == 2:
                    return INSIDE, False
            elif code.co_name.lstrip("_").startswith(GENERATES):
                kind = GENERATE
            elif code.co_name.startswith(CALIBRATE):
                is_calibration = True
            frame = frame.f_back
        return kind, is_calibration
