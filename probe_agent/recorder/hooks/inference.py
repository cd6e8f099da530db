"""Steps of a loop without an optimizer: each ends when a call of its outermost module returns.

The recorder's thread reads the stacks a few times a second to see which modules the job's threads are in. Once a module
has been seen twice, and the job has no optimizer, a descriptor replaces the `__call__` of its class: each call is a
step, on any thread, and calls on several threads may overlap. The module itself is never touched, and held by a weak
reference. Other modules of its class get torch's own method from the descriptor, 0.4 µs later; other classes are
unaffected. So are torch's own calls, since `torch.compile` keeps the method that it gets.

Calls stop being steps when an optimizer steps, a backward runs, or the job marks its steps itself: they were an
evaluation before the training, whose steps are counted anew. Without an optimizer, a call begins a step after the
parameters have changed (steps/updates.py).

Runs on the calling threads: a counted call costs clock reads and a row of `python.steps`, 7 µs (benchmarks.hooks).
"""

from __future__ import annotations

import functools
import sys
from _thread import get_ident
from abc import ABCMeta
from collections.abc import Callable, Iterator
from time import perf_counter_ns, sleep
from types import FrameType, MethodType
from typing import Any
from weakref import ref

from ..guest import own_threads
from ..guest.walk import frames_of, idents
from ..names import frames
from ..source import Recorder
from ..source import Source as BaseSource
from ..torch.dynamo import AroundCompile

__all__ = ["CallWatch", "Source"]

#: Time without the end of a step after which the stacks are read.
QUIET_NS = 5_000_000_000
#: Time without a call of the tracked module after which another one may replace it.
FORGOTTEN_NS = 60_000_000_000
#: Share of the time for reading stacks.
LOOK_SHARE = 0.001
#: Reads per tick while no module is tracked, and their distance: a model may run only a tenth of the time.
LOOKS_A_TICK, LOOK_INTERVAL_S = 5, 0.01
#: Times that a module must have been seen as the outermost one.
TIMES_SEEN = 2
#: Modules and threads that are remembered.
MAX_SEEN = 200
#: Module of torch that calls the job's modules with other parameters, for functional optimizers.
FUNCTIONAL_CALL = "torch.nn.utils.stateless"
#: Time until the job's frames are searched for an optimizer again, after one was found.
SEARCH_INTERVAL_NS = 30_000_000_000


class CallWatch:
    """Descriptor in place of `__call__` in the class of a module; it times the calls of that module and its
    replicas."""

    def __init__(
        self,
        module: Any,
        skips: Callable[[], bool],
        begins: Callable[[int], None],
        ended: Callable[[int, int], None],
    ) -> None:
        self._kind: Any = type(module)
        self._own = self._kind.__dict__.get("__call__")
        self._module = ref(module)
        #: Watched modules by id.
        self._watched = {id(module): self._module}
        self._skips = skips
        self._begins = begins
        self._ended: Callable[[int, int], None] | None = ended
        #: Threads inside a call: of nested calls the outermost is timed.
        self._inside: set[int] = set()
        self._call = self._timed()

    def __get__(self, module: Any, kind: Any = None) -> Any:
        if not self.watches(module) or _is_torchs(sys._getframe().f_back):
            return self._original(module)
        return MethodType(self._call, module)

    def __reduce__(self) -> tuple[Any, ...]:
        # A class pickled by value (one of `__main__`, say) gets the original attribute.
        owner = next(kind for kind in self._kind.__mro__ if kind.__dict__.get("__call__", self) is not self)
        return getattr, (owner if self._own is None else self._kind, "__call__")

    def watches(self, module: Any) -> bool:
        """Return whether the calls of `module` are timed."""
        found = self._watched.get(id(module))
        return found is not None and found() is module and module is not None

    def add(self, module: Any) -> None:
        """Watch a replica, which another thread calls."""
        self._watched[id(module)] = ref(module)

    def put(self) -> None:
        """Replace `__call__` of the class."""
        if self._kind.__dict__.get("__call__") is self._own:
            self._kind.__call__ = self

    def take(self) -> None:
        """Restore the class, unless the job has replaced `__call__` meanwhile."""
        if self._kind.__dict__.get("__call__") is not self:
            return
        if self._own is None:
            del self._kind.__call__
        else:
            self._kind.__call__ = self._own

    def end(self) -> None:
        """Restore the class for good; a method that the job has kept no longer records."""
        self.take()
        self._ended, self._begins, self._skips = None, _nothing, bool

    @property
    def module(self) -> Any:
        """The first watched module, None if it is gone."""
        return self._module()

    def _original(self, module: Any) -> Any:
        """Return the original `module.__call__`, or the class's if `module` is None."""
        if self._own is not None:
            return self._own.__get__(module, self._kind)
        above: Any = super(self._kind, self._kind if module is None else module)
        return above.__call__

    def _timed(self) -> Any:
        """Return the method that times a call."""
        inside = self._inside

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            thread = get_ident()
            if thread in inside or self._ended is None or not self.watches(module) or self._skips():
                return self._original(module)(*args, **kwargs)
            inside.add(thread)
            began = perf_counter_ns()
            self._begins(began)
            try:
                output = self._original(module)(*args, **kwargs)
            finally:
                inside.discard(thread)
            ended = self._ended
            if ended is not None:  # unless detached meanwhile
                ended(began, perf_counter_ns())
            return output

        return functools.wraps(self._original(None))(call)


class Source(BaseSource):
    name = "inference"
    needs = ("torch", "torch.nn.modules.module", "torch.optim.optimizer")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._step = recorder.step
        self._ends = recorder.ends
        self._cost = recorder.cost(self.name)
        self._watch: CallWatch | None = None
        self._around_compile = AroundCompile(self._take, self._put)
        #: Code of `Module.__call__`, whose frames are searched for.
        self._code = sys.modules["torch"].nn.Module.__call__.__code__
        #: Modules seen as the outermost one, by id: weak reference, threads, number of times.
        self._seen: dict[int, tuple[Callable[[], Any], set[int], int]] = {}
        self._last_end = perf_counter_ns()
        self._look_at = self._searched_at = 0
        self._has_grad = sys.modules["torch"].is_grad_enabled
        #: Threads that have called without gradients, and those among them that have since called with gradients, which
        #: may begin training.
        self._without_grad: set[int] = set()
        self._with_grad: set[int] = set()

    def tick(self) -> None:
        if not self._ends.takes_updates:
            self.stop()
            return
        if self._watch is not None:
            self._around_compile.watch()
        now = perf_counter_ns()
        if now - self._last_end <= QUIET_NS or now <= self._look_at:
            return
        for is_first in (True, *(False,) * (LOOKS_A_TICK - 1)):
            if self._watch is not None and not is_first:
                break
            if not is_first:
                sleep(LOOK_INTERVAL_S)
            began = perf_counter_ns()
            self._look()
            self._look_at = perf_counter_ns() + round((perf_counter_ns() - began) / LOOK_SHARE)

    def stop(self) -> None:
        self._around_compile.forget()
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    # On the recorder's thread.

    def follow(self, module: Any) -> None:
        """Track `module`: each of its calls, on any thread, ends a step."""
        self.stop()
        self.recorder.seen.modules.note(module)
        self._watch = CallWatch(module, self._skips, self._begins, self._ended)
        self._put()
        self._around_compile.watch()

    def _look(self) -> None:
        """See which modules the job's threads are in, and track one that is seen again."""
        for thread, module in self._outermost():
            seen, threads, num_times = self._seen.get(id(module), (None, set(), 0))
            if seen is None or seen() is not module:
                threads, num_times = set(), 0
            threads.add(thread)
            if len(self._seen) > MAX_SEEN:
                self._seen.clear()
            self._seen[id(module)] = (ref(module), threads, num_times + 1)
            self._note(module, thread)
            if num_times + 1 < TIMES_SEEN:
                continue
            if self._is_replica(module, thread):
                self._watch.add(module)  # type: ignore[union-attr]  # not None: module is a replica of its module
            elif self._may_follow(module) and not self._trains():
                self.follow(module)

    def _note(self, module: Any, thread: int) -> None:
        """Note a running module, as an explanation while there are no steps."""
        threading: Any = sys.modules.get("threading")
        name = getattr(getattr(threading, "_active", {}).get(thread), "name", thread)
        label = f"{type(module).__name__} on thread {name}"
        seen = self.recorder.seen.running
        if label in seen or len(seen) < MAX_SEEN:
            seen[label] = seen.get(label, 0) + 1

    def _is_replica(self, module: Any, thread: int) -> bool:
        """Return whether `module` has the tracked class and runs on a thread that does not call the tracked module."""
        watch = self._watch
        if watch is None or type(watch.module) is not type(module) or watch.watches(module):
            return False
        _, threads, _ = self._seen.get(id(watch.module), (None, {thread}, 0))
        return thread not in threads

    def _outermost(self) -> Iterator[tuple[int, Any]]:
        """Yield the outermost module that each of the job's threads is in."""
        for thread in idents():
            if thread in own_threads.idents():
                continue
            found = [frame for frame in frames_of(thread) if frame.f_code is self._code]
            if found:
                (name, *_) = self._code.co_varnames
                module = frames.read(found[-1], (name,)).get(name)
                found.clear()
                if module is not None and _can_be_watched(type(module)):
                    yield thread, module

    def _may_follow(self, module: Any) -> bool:
        """Return whether to track `module`: it is not tracked yet, and nothing else is or that is idle."""
        if self._watch is None or self._watch.module is None:
            return True
        if self._watch.watches(module):
            return False
        return perf_counter_ns() - self._last_end > FORGOTTEN_NS

    def _trains(self) -> bool:
        """Return whether the job has an optimizer, which will step sooner or later."""
        now = perf_counter_ns()
        if self._searched_at and now - self._searched_at < SEARCH_INTERVAL_NS:
            return True
        self._searched_at = now
        is_found = self.recorder.has_optimizer()
        if not is_found:
            self._searched_at = 0
        return is_found

    def _put(self) -> None:
        watch = self._watch
        if watch is not None:
            watch.put()
            if watch is not self._watch:  # the recorder's thread has ended it meanwhile
                watch.take()

    def _take(self) -> None:
        watch = self._watch
        if watch is not None:
            watch.take()

    # On the job's thread.

    def _skips(self) -> bool:
        return bool(self.recorder.device.is_compiling() or sys.modules["torch"]._C._is_tracing())

    def _begins(self, now: int) -> None:
        """Note the start of a call of the tracked module."""
        try:
            if self.recorder.updates.is_awaited:
                self.recorder.updates.look(now)
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise

    def _ended(self, began: int, ended: int) -> None:
        """Note the end of a call of the tracked module."""
        try:
            step, ends = self._step, self._ends
            if not ends.takes_calls:
                if step.thread == get_ident() and not step.sampled and self._has_grad():
                    step.in_modules = (step.in_modules or 0) + ended - began
            elif step.micro_batches:
                ends.no_more_calls()
            elif self._is_step() and ends.end_call(began, ended):
                self._last_end = ended
                self._cost.calls += 1
                self._cost.ns += perf_counter_ns() - ended
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise

    def _is_step(self) -> bool:
        """Return whether a call is a step; the first call with gradients after calls without them is not: a backward
        may follow."""
        thread = get_ident()
        if not self._has_grad():
            self._without_grad.add(thread)
            return True
        if thread not in self._without_grad or thread in self._with_grad:
            return True
        self._with_grad.add(thread)
        return False


def _nothing(now: int) -> None:
    """Stand in for `_begins` after the end."""


def _is_torchs(frame: FrameType | None) -> bool:
    """Return whether the calling code is torch's own, except `functional_call`, which makes the job's call."""
    name = "" if frame is None else str(frame.f_globals.get("__name__"))
    return name.partition(".")[0] == "torch" and name != FUNCTIONAL_CALL


def _can_be_watched(kind: Any) -> bool:
    """Return whether `__call__` of the class can be replaced: not if the class sets it itself (a traced graph), and not
    with an unknown metaclass."""
    own = kind.__dict__.get("__call__")
    is_known = own is None or isinstance(own, CallWatch) or kind.__module__ == "torch._dynamo.eval_frame"
    return type(kind) in (type, ABCMeta) and is_known
