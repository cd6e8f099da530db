"""Forward and backward of each module in sampled steps: `python.torch_trace`.

torch calls modules through a fast path while no hook exists, so the hooks are installed when a sampled step begins and
removed when it ends, both between two steps. They are removed while Dynamo compiles, so that compiled code does not
depend on them. Modules inside a compiled region are not visible, nor is one compiled in place (`m.compile()`), whose
time counts as its caller's own. If the job has hooks on all modules and compiles, nothing is recorded, and
`probe.errors` says so.

For backward, hooks on the nodes of torch's graph that produce a module's inputs and outputs note when each is about to
run; steps/backward_spans.py turns that into spans: in every sampled step for the outermost modules, in one sampled step
in `trace.deep_every` for all. No hook is on a tensor, and those on nodes are removed a step later (0.2 µs each), even
if the job keeps the graph.

Runs on the training thread: 5.5 µs per module call in a sampled step (benchmarks.hooks), nothing in the others.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from time import perf_counter_ns
from typing import Any

from ..no_rows import why_no_steps
from ..ring.table import NULL_FLOAT, Column, Table
from ..source import Awaited, Recorder
from ..source import Source as BaseSource
from ..steps.module_spans import ModuleSpans
from ..steps.step import LONG_STEP_NS, OTHER, TRAIN, Watcher
from ..torch.captures import allow_captures_elsewhere
from ..torch.dynamo import AroundCompile, has_compiled
from ..torch.module_hooks import KEY, OurHook
from ..torch.patches import Patches
from ..torch.values import tensors_in

__all__ = ["Source", "TorchTrace"]

#: Reading the resident memory is a system call; a value is reused for this long.
RSS_VALID_NS = 1_000_000
#: Limit of the search for tensors in an output or in arguments.
MAX_TENSORS = 16


class TorchTrace(Table):
    name = "python.torch_trace"
    doc = "One row per module and stage of a sampled step."
    capacity = 131_072
    columns = (
        Column("step", "int", "", "step number, counted from 0"),
        Column("ts", "time", "UTC", "end of the span"),
        Column("seq", "int", "", "order in which the spans of the step ended"),
        Column(
            "module",
            "text",
            "",
            "class of the outermost module and the path below it: GPT.blocks.0.attn; for an optimizer its class, with"
            " the variable that holds it if several of the class step: Adam optimizer_d",
        ),
        Column("stage", "text", "", "forward, backward or step (the optimizer)"),
        Column(
            "duration",
            "float",
            "s",
            "time on the host, children included; for a backward from the module's last operator to its first, at most"
            " to the end of that run of the engine",
        ),
        Column("self_duration", "float", "s", "duration without that of the recorded children"),
        Column("device", "text", "", "device of the module's output"),
        Column(
            "device_duration",
            "float",
            "s",
            "time of the same span on the device; NULL on a CPU, and on a GPU that is not the current device",
        ),
        Column("allocated", "float", "MiB", "memory in use at the end: the device's, or resident on a CPU-only target"),
        Column("allocated_delta", "float", "MiB", "change of allocated during the span"),
        Column("reserved", "float", "MiB", "held by torch's allocator; NULL on a CPU-only target"),
        Column("input_shapes", "text", "", "shapes of the tensors among a forward's positional arguments: 32x64, 32x8"),
        Column("compiled", "bool", "", "the module is compiled; modules below it are not visible"),
        Column("recomputed", "bool", "", "forward inside backward (activation checkpointing), part of its time"),
        Column(
            "phase",
            "text",
            "",
            "train; eval (without gradients); generate (without gradients, in a function named generate… or rollout…);"
            " other (with gradients, but the outermost module is in eval mode)",
        ),
    )


class Source(BaseSource):
    name = "torch_trace"
    needs = ("torch", "torch.nn.modules.module", "torch.optim.optimizer")
    tables = (TorchTrace,)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._step = recorder.step
        self._device = recorder.device
        self._is_compiling = recorder.device.is_compiling
        self._cost = recorder.cost(self.name)
        self._evaluations = recorder.evaluations
        self._buffer = recorder.buffer(TorchTrace)
        self._spans = ModuleSpans(self._step, self._device, self._buffer)
        self._patches = Patches()
        self._ours: list[OurHook] = []
        self._are_there = self._is_disabled = False  # the hooks
        #: The recorder goes: what the training thread is about to install, it removes again.
        self._is_stopped = False
        #: Whether the step is sampled, and who watches it: what the hooks are made for.
        self._made_for: tuple[bool, Watcher | None] = (False, None)
        #: Whether the running step is to have hooks.
        self._has_begun = False
        self._with_kwargs: dict[int, bool] = {}
        #: Hooked nodes of this step by number, and the handles of their hooks.
        self._watched: dict[int, Any] = {}
        #: Handles of the sampled step before, whose graph this one may go backward through.
        self._watched_before: list[Any] = []
        #: Thread whose modules are recorded now; None between sampled steps.
        self._thread: int | None = None
        self._outermost: Any = None
        #: Depth of nested calls of the outermost module, if it calls itself.
        self._num_inside = 0
        self._allocated = NULL_FLOAT
        self._read_at = 0
        self._has_grad = sys.modules["torch"].is_grad_enabled
        self._around_compile = AroundCompile(self._remove, self._come_back)

    def start(self) -> None:
        modules: Any = sys.modules["torch.nn.modules.module"]
        # Hooks that also get the keyword arguments; older versions of torch have none.
        self._with_kwargs = getattr(modules, "_global_forward_hooks_with_kwargs", {})
        self._ours = [OurHook(modules._global_forward_pre_hooks), OurHook(modules._global_forward_hooks)]
        self._step.ending.append(self._end_step)
        self._step.beginning.append(self._begin_step)

    def tick(self) -> None:
        """Write rows of a long step that is still running, and of steps before it whose device times have arrived."""
        spans = self._spans
        if (spans.events or spans.is_waiting) and perf_counter_ns() - self._step.started > LONG_STEP_NS:
            spans.replay()
            if spans.is_waiting:
                allow_captures_elsewhere()
                spans.device_times()

    def awaited(self) -> Mapping[str, Awaited]:
        return {} if self.recorder.has_rows(TorchTrace) else {TorchTrace.name: self._why_empty()}

    def _why_empty(self) -> Awaited:
        every, step = self.recorder.governor.every, self._step
        if not every:
            return Awaited("trace.every is 0, so no step is sampled", "probe … config trace.every=20")
        if step.thread is None:
            return why_no_steps(self.recorder)
        if self._is_disabled:
            return Awaited("the job has hooks on all modules and compiles", "see why: SELECT * FROM probe.errors")
        if not self.recorder.governor.num_sampled:
            told = f"one step in {every} is sampled and no sampled step has ended; step {step.number} is running"
            return Awaited(told, "wait for one, or sample every step: probe … config trace.every=1")
        told = "no module was called on the training thread during a sampled step"
        if has_compiled():
            told += "; modules inside a compiled region are not visible"
        return Awaited(told, "see what the threads do: probe … backtrace --all")

    def stop(self) -> None:
        self._is_stopped = True
        self._thread = None
        self._has_begun = False
        for calls, ours in ((self._step.ending, self._end_step), (self._step.beginning, self._begin_step)):
            if ours in calls:
                calls.remove(ours)
        self._around_compile.forget()
        self._remove()
        for _ in range(2):
            self._leave_nodes()
        self._spans.give_up()

    # Between two steps, on the training thread.

    def _begin_step(self) -> None:
        try:
            step = self._step
            step.calls_are_seen = step.sampled or step.watcher is not None
            if step.calls_are_seen and not self._device.is_capturing():
                began = perf_counter_ns()
                if step.sampled:
                    self._allocated, self._read_at = self._device.allocated(), began
                    self._spans.begin(self._allocated)
                self._around_compile.watch()
                self._has_begun = True
                if self._are_there and self._made_for != (step.sampled, step.watcher):
                    self._remove()
                if not self._are_there:
                    self._install()
                self._thread = step.thread if self._are_there and step.sampled else None
                self._cost.ns += perf_counter_ns() - began
            else:
                if self._are_there:
                    self._remove()
                if self._watched_before:
                    self._leave_nodes()
            if self._is_stopped:  # meanwhile
                self._around_compile.forget()
                self._remove()
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise

    def _end_step(self) -> None:
        self._has_begun = False
        if self._thread is None and not self._spans.is_waiting and not self._buffer.rows:
            return
        began = perf_counter_ns()
        try:
            if self._thread is not None:
                self._thread = self._outermost = None
                self._num_inside = 0
                self._spans.end()
                self._leave_nodes()
                self._cost.calls = self._spans.num_calls
                self._cost.ns += perf_counter_ns() - began
            self._spans.device_times()
            if self._buffer.rows:
                self._buffer.flush()
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise

    def _leave_nodes(self) -> None:
        """Remove the hooks of nodes that are a step old: a job that keeps its losses keeps their graph."""
        for handle in self._watched_before:
            handle.remove()
        self._watched_before = list(self._watched.values())
        self._watched.clear()

    def _install(self) -> None:
        modules: Any = sys.modules["torch.nn.modules.module"]
        if modules._has_any_global_hook():
            if has_compiled():
                self._disable()
                return
        else:
            # A compiled module warns about global hooks, which would end a job run with -W error. The recorder's
            # hooks do nothing there, so the answer stays what it was without them.
            self._patches.put(modules, "_has_any_global_hook", lambda: False)
        watcher = self._step.watcher
        self._made_for = self._step.sampled, watcher
        for ours, hook in zip(self._ours, self._hooks() if watcher is None else self._watching_hooks(watcher)):
            ours.put(hook)
        modules._global_forward_hooks_always_called[KEY] = True  # also where the forward raises
        if watcher is not None:
            self._with_kwargs[KEY] = True
        self._are_there = True

    def _disable(self) -> None:
        """Record no modules: what Dynamo has compiled depends on the number of hooks on all modules."""
        if not self._is_disabled:
            self._is_disabled = True
            told = "modules are not recorded: the job has hooks on all modules, and one more would recompile its model"
            self.recorder.fail(self.name, RuntimeError(told))

    def _come_back(self) -> None:
        """Install the hooks again after a compilation in the middle of a sampled step."""
        try:
            if self._has_begun and not self._are_there:
                self._install()
            if self._is_stopped:
                self._remove()
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise

    def _remove(self) -> None:
        modules: Any = sys.modules["torch.nn.modules.module"]
        modules._global_forward_hooks_always_called.pop(KEY, None)
        self._with_kwargs.pop(KEY, None)
        for ours in self._ours:
            ours.take()
        self._patches.restore()
        self._are_there = False

    # The hooks: clock reads and a list append. They are closures over all they need, since they run twice per module
    # call.

    def _hooks(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return the hook before a module's forward and the one after it."""
        is_compiling, has_gpu, mark_of = self._is_compiling, self._device.has_gpu, self._device.mark
        elsewhere = self._device.is_elsewhere
        note, tensor, step = self._spans.events.append, sys.modules["torch"].Tensor, self._step
        is_tracing = sys.modules["torch"]._C._is_tracing
        position, watch = sys.modules["torch"]._C._autograd._get_sequence_nr, self._watching()
        phase_of = self._phase_of
        in_use = self.recorder.seen.modules.note
        autocast, autocast_on = self.recorder.seen.autocast, self._device.autocast

        def before(module: Any, args: object) -> None:
            if is_compiling() or self._thread != get_ident() or is_tracing():
                return
            outermost, is_watched = self._outermost, step.deep
            if outermost is None:
                if not step.in_backward:
                    self._outermost = module
                    is_watched = True
                    phase = phase_of(module)
                    if phase in (TRAIN, OTHER):
                        step.in_forward = True
                    if phase != self._spans.noted_phase:
                        self._spans.note_phase(phase)
                    in_use(module)
            elif outermost is module:
                self._num_inside += 1
            try:
                if is_watched and args:
                    watch(args)
                note((module, perf_counter_ns(), mark_of() if has_gpu else None, position()))
            except Exception as error:
                if self.recorder.fail(self.name, error):
                    raise

        def after(module: Any, args: tuple[Any, ...], output: Any) -> None:
            if is_compiling() or self._thread != get_ident() or is_tracing():
                return
            now = perf_counter_ns()
            try:
                mark = mark_of() if has_gpu else None
                is_watched, ended_at = step.deep, position()
                if self._outermost is module:
                    if self._num_inside:
                        self._num_inside -= 1
                    else:
                        self._outermost = None
                        self._read_at = 0
                        is_watched = True
                out = output if output.__class__ is tensor else next(self._tensors(output), None)
                if is_watched and out is not None:
                    watch(output)
                if has_gpu or now - self._read_at > RSS_VALID_NS:
                    self._allocated = self._device.allocated()
                    self._read_at = now
                shapes: tuple[Any, ...]
                try:
                    if len(args) == 1 and args[0].__class__ is tensor:
                        shapes = (args[0].shape,)
                    else:
                        shapes = tuple([value.shape for value in args if value.__class__ is tensor])
                except RuntimeError:
                    shapes = ()  # a nested tensor has none
                device = None if out is None else out.device
                if device is not None and device.type not in autocast and (dtype := autocast_on(device.type)):
                    autocast[device.type] = dtype
                if mark is not None and device is not None and elsewhere(mark, device):
                    mark = None
                note((module, now, mark, self._allocated, device, ended_at, shapes, step.in_backward))
            except Exception as error:
                if self.recorder.fail(self.name, error):
                    raise

        return before, after

    def _watching_hooks(self, watcher: Watcher) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return the hooks of a step that is watched, and perhaps sampled as well."""
        if not self._step.sampled:
            return watcher.before, watcher.after
        note_before, note_after = self._hooks()

        def before(module: Any, args: Any) -> None:
            note_before(module, args)
            watcher.before(module, args)

        def after(module: Any, args: Any, *more: Any) -> None:
            note_after(module, args, more[-1])
            watcher.after(module, args, *more)

        return before, after

    def _phase_of(self, outermost: Any) -> str:
        """Return the phase of this call of the outermost module."""
        try:
            if not self._has_grad():
                return self._step.kind_of_call(outermost)
            if self._evaluations.awaits_call:
                self._evaluations.called(outermost)
            return TRAIN if outermost.training else OTHER
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise
            return OTHER

    def _watching(self) -> Callable[[object], None]:
        """Return a function that hooks the nodes which produced the tensors in a value; each notes when it is about
        to run."""
        note, step, tensor = self._spans.events.append, self._step, sys.modules["torch"].Tensor
        watched = self._watched

        def telling(position: int) -> Callable[..., None]:
            def tell(*_: object) -> None:
                if step.in_backward and step.sampled:
                    note((perf_counter_ns(), position))

            return tell

        def watch(value: Any) -> None:
            for one in (value,) if value.__class__ is tensor else self._tensors(value):
                if one.requires_grad:
                    try:
                        node = one.grad_fn
                    except RuntimeError:
                        continue  # a view without a gradient since its base was changed in place
                    if node is not None:
                        position = node._sequence_nr()
                        if position not in watched:
                            watched[position] = node.register_prehook(telling(position))

        return watch

    def _tensors(self, value: object) -> Iterator[Any]:
        """Yield the first tensors in a value."""
        return islice(tensors_in(value, self._device.is_tensor), MAX_TENSORS)
