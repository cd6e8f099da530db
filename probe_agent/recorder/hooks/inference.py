"""Where the steps of a loop without an optimizer end: where the call of its outermost module returns.

Our own thread looks at the stacks, a few times a second, which module the job is in; that takes nothing from the job.
When one has been seen twice, and the job has no optimizer, the `__call__` of that module's class is replaced by a
descriptor. The module itself is never touched, and held by a weak reference. Other modules of its class get torch's
own method from the descriptor, 0.4 µs later; those of other classes are called as ever. So is whatever torch itself
calls, since `torch.compile` keeps the method that it gets. A counted call costs clock reads and a row of
`python.steps`, 7 µs (benchmarks.hooks).

It is over for good when an optimizer steps, a backward runs, or the job says itself where its steps end: then it was an
evaluation before a training, whose steps are counted anew.
"""

from __future__ import annotations

import functools
import sys
from _thread import get_ident
from abc import ABCMeta
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from types import FrameType, MethodType
from typing import Any
from weakref import ref

from .. import inventory, own_threads
from ..aside import Aside
from ..evaluate import frames
from ..source import Recorder
from ..source import Source as BaseSource

__all__ = ["CallWatch", "Source"]

#: Without an end of a step for so long, we look which module the job is in.
QUIET_NS = 5_000_000_000
#: And for so long, before another module counts than the one that does, as long as that is there.
FORGOTTEN_NS = 60_000_000_000
#: How much of the time may go into that.
LOOK_SHARE = 0.0005
#: So often must a module have been seen as the outermost one.
TIMES_SEEN = 2
#: Until the job's frames are searched for an optimizer again, where there was one.
SEARCH_INTERVAL_NS = 30_000_000_000


class CallWatch:
    """Stands for `__call__` in the class of one module, whose calls on one thread it times."""

    def __init__(self, module: Any, thread: int, skips: Callable[[], bool], ended: Callable[[int, int], None]) -> None:
        self._kind: Any = type(module)
        self._own = self._kind.__dict__.get("__call__")
        self._module = ref(module)
        self.thread = thread
        self._skips = skips
        self._ended: Callable[[int, int], None] | None = ended
        self._call = self._timed()

    def __get__(self, module: Any, kind: Any = None) -> Any:
        if module is None or module is not self._module() or _is_torchs(sys._getframe().f_back):
            return self._original(module)
        return MethodType(self._call, module)

    def __reduce__(self) -> tuple[Any, ...]:
        # Whoever pickles a class with all that is in it (one of `__main__`, say) gets what is there without us.
        owner = next(kind for kind in self._kind.__mro__ if kind.__dict__.get("__call__", self) is not self)
        return getattr, (owner if self._own is None else self._kind, "__call__")

    def put(self) -> None:
        """Stand there from now on."""
        if self._kind.__dict__.get("__call__") is self._own:
            self._kind.__call__ = self

    def take(self) -> None:
        """Leave the class as it was. What the job has put there meanwhile stays."""
        if self._kind.__dict__.get("__call__") is not self:
            return
        if self._own is None:
            del self._kind.__call__
        else:
            self._kind.__call__ = self._own

    def end(self) -> None:
        """For good: the job may have kept the method, but that finds nothing of us any more."""
        self.take()
        self._ended = None

    @property
    def module(self) -> Any:
        """The module, None when it is gone."""
        return self._module()

    def _original(self, module: Any) -> Any:
        """What `module.__call__` is without us, or the class's where `module` is None."""
        if self._own is not None:
            return self._own.__get__(module, self._kind)
        above: Any = super(self._kind, self._kind if module is None else module)
        return above.__call__

    def _timed(self) -> Any:
        """The method that the module is called by; of calls inside each other the outermost is timed."""
        is_inside = False

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal is_inside
            ended = self._ended
            is_other = self.thread != get_ident() or module is not self._module()
            if ended is None or is_other or is_inside or self._skips():
                return self._original(module)(*args, **kwargs)
            is_inside = True
            began = perf_counter_ns()
            try:
                output = self._original(module)(*args, **kwargs)
            finally:
                is_inside = False
            if self._ended is not None:  # detached meanwhile
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
        self._aside = Aside(self._take, self._put)
        #: The code of `Module.__call__`, whose frames we look for.
        self._code = sys.modules["torch"].nn.Module.__call__.__code__
        self._seen: tuple[Any, int, int] = (None, 0, 0)  # a weak reference to a module, its thread, how often
        self._last_end = perf_counter_ns()
        self._look_at = self._searched_at = 0
        self._has_grad = sys.modules["torch"].is_grad_enabled
        #: Calls without gradients have been seen; one with them begins a training then.
        self._is_without_grad = False

    def tick(self) -> None:
        if not self._ends.takes_calls or self._step.micro_batches:
            self.stop()
            return
        if self._watch is not None:
            self._aside.watch()
        now = perf_counter_ns()
        if now - self._last_end > QUIET_NS and now > self._look_at:
            self._look()
            self._look_at = now + round((perf_counter_ns() - now) / LOOK_SHARE)

    def stop(self) -> None:
        self._aside.forget()
        if self._watch is not None:
            self._watch.end()
            self._watch = None

    # On our own thread.

    def follow(self, module: Any, thread: int) -> None:
        """A step ends where a call of this module on this thread does."""
        self.stop()
        self._watch = CallWatch(module, thread, self._skips, self._ended)
        self._put()
        self._aside.watch()

    def _look(self) -> None:
        """See which module the job is in; the one that is seen again is the one whose calls are steps."""
        for thread, module in self._outermost():
            seen, seen_on, num_times = self._seen
            if seen is None or seen() is not module or seen_on != thread:
                num_times = 0
            self._seen = (ref(module), thread, num_times + 1)
            if num_times + 1 >= TIMES_SEEN and self._may_follow(module, thread) and not self._trains():
                self.follow(module, thread)
            return

    def _outermost(self) -> Iterator[tuple[int, Any]]:
        """The outermost module that each of the job's threads is in."""
        innermost = sys._current_frames()
        for thread in own_threads.idents():
            innermost.pop(thread, None)
        for thread in list(innermost):
            found, frame = None, innermost.pop(thread, None)
            while frame is not None:
                if frame.f_code is self._code:
                    found = frame
                frame = frame.f_back
            if found is not None:
                (name, *_) = self._code.co_varnames
                module = frames.read(found, (name,)).get(name)
                found = None
                if module is not None and _can_be_watched(type(module)):
                    yield thread, module

    def _may_follow(self, module: Any, thread: int) -> bool:
        """Not what is followed already, nor what is called between two calls of that."""
        if self._watch is None or self._watch.module is None:
            return True
        if self._watch.module is module:
            return self._watch.thread != thread
        return perf_counter_ns() - self._last_end > FORGOTTEN_NS

    def _trains(self) -> bool:
        """Whether the job has an optimizer: then it will step, sooner or later."""
        now = perf_counter_ns()
        if self._searched_at and now - self._searched_at < SEARCH_INTERVAL_NS:
            return True
        self._searched_at = now
        if inventory.find(inventory.OPTIMIZER, self.recorder):
            return True
        self._searched_at = 0
        return False

    def _put(self) -> None:
        if self._watch is not None:
            self._watch.put()

    def _take(self) -> None:
        if self._watch is not None:
            self._watch.take()

    # On the job's thread.

    def _skips(self) -> bool:
        return bool(self.recorder.device.is_compiling() or sys.modules["torch"]._C._is_tracing())

    def _ended(self, began: int, ended: int) -> None:
        """A call of the module is over."""
        try:
            if self._step.micro_batches:
                self._ends.no_more_calls()
                return
            has_grad = self._has_grad()
            self._is_without_grad |= not has_grad
            if not (has_grad and self._is_without_grad) and self._ends.end_call(ended, ended - began):
                self._last_end = ended
                self._cost.calls += 1
                self._cost.ns += perf_counter_ns() - ended
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise


def _is_torchs(frame: FrameType | None) -> bool:
    """Whether the code that asks is torch's own; None where that is not Python's."""
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "torch"


def _can_be_watched(kind: Any) -> bool:
    """Not a class that makes its own `__call__` anew whenever it likes (a traced graph's), nor one with rules of its
    own for what it may have."""
    own = kind.__dict__.get("__call__")
    is_known = own is None or isinstance(own, CallWatch) or kind.__module__ == "torch._dynamo.eval_frame"
    return type(kind) in (type, ABCMeta) and is_known
