"""Expressions evaluated repeatedly, between two steps, on the training thread.

Names are resolved as by `eval`, anew each time. No exception of an expression leaves `run`, except those that the job's
own signal handlers raised meanwhile. The training thread pays for the expressions and for resolving their names on the
steps that are evaluated (see probe.overhead), about 2 µs on the others.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable
from functools import partial
from time import monotonic, perf_counter_ns
from types import CodeType
from typing import Any, NamedTuple

from ..names.lookup import Lookup
from ..source import Recorder
from ..torch import host_number, loaded
from .fence import Fence, Stopped
from .foreign import is_from_signal_handler
from .session import Namespace

__all__ = ["FILE", "Seen", "Watch"]

FILE = "<watch-var>"
MAX_FAILURES = 3
MAX_TEXT_CHARS = 200
#: An expression that takes longer holds up the job: it is stopped and counts as failed.
LIMIT_S = 1.0


class Seen(NamedTuple):
    """Value of one expression after one step: a number, a text, or an exception."""

    step: int
    expression: str
    value: float | None
    text: str | None
    error: str | None


class Watch:
    """An entry of the step queue that returns after every step, until `cancel`, `count` rounds, or no expression."""

    def __init__(
        self,
        recorder: Recorder,
        codes: dict[str, CodeType],
        every: int,
        count: int | None,
        tell: Callable[[Seen], None],
    ) -> None:
        """Evaluate `codes` every `every` steps, `count` times; `tell` is called on the training thread."""
        self._recorder = recorder
        self._codes = codes
        self._every = every
        self._left = count
        self._tell = tell
        self._cost = recorder.cost("watch-var")
        self._failures = dict.fromkeys(codes, 0)
        self._told: set[str] = set()
        self._cancelled = False
        self._foreign: BaseException | None = None
        self._fence: Fence | None = None
        self._began = 0.0
        self._done = allocate_lock()
        self._done.acquire()
        #: Notes for the client: where a name was found, which expression was removed.
        self.notes: list[str] = []
        self.num_looks = 0

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end, and stop an expression that holds up the job; return True once."""
        fence = self._fence
        if fence is not None and (self._cancelled or monotonic() - self._began > LIMIT_S):
            fence.send()
        return self._done.acquire(timeout=timeout_s)

    def cancel(self) -> None:
        """Evaluate nothing any more."""
        self._cancelled = True
        self._recorder.at_step.withdraw(self)
        if self._fence is not None:
            self._fence.send()

    def run(self) -> None:
        """Evaluate the expressions if they are due; called between two steps."""
        began = perf_counter_ns()
        ended = self._recorder.step.number - 1
        try:
            if not self._cancelled and ended % self._every == 0:
                self._look(ended)
        except Exception as error:
            self._codes.clear()
            if self._recorder.fail("watch-var", error):
                raise
        finally:
            self._cost.ns += perf_counter_ns() - began
            if self._cancelled or not self._codes or self._left == 0:
                self._done.release()
            else:
                self._recorder.at_step.submit(self)
        if self._foreign is not None:
            foreign, self._foreign = self._foreign, None
            raise foreign

    def _look(self, step: int) -> None:
        for expression, code in list(self._codes.items()):
            fence = Fence()
            found: list[Seen] = []
            self._began = monotonic()
            self._fence = fence
            fence.run(partial(self._evaluate, step, expression, code, found))
            self._fence = None
            if fence.stopped:
                found = [Seen(step, expression, None, None, f"stopped: it took longer than {LIMIT_S:g} s")]
            for seen in found:
                self._tell(seen)
                if seen.error is not None:
                    self._failed(expression)
        self._cost.calls += 1
        self.num_looks += 1
        if self._left is not None:
            self._left -= 1

    def _failed(self, expression: str) -> None:
        self._failures[expression] += 1
        if self._failures[expression] == MAX_FAILURES:
            del self._codes[expression]
            self.notes.append(f"{expression}: removed after {MAX_FAILURES} failures")

    def _evaluate(self, step: int, expression: str, code: CodeType, found: list[Seen]) -> None:
        namespace = Namespace()
        lookup = Lookup(lambda: self._recorder.step.thread, Watch.run.__code__, self._told)
        namespace.scope.lookup = lookup
        try:
            found.append(Seen(step, expression, *_shown(eval(code, namespace)), None))
        except Stopped:
            raise
        except BaseException as error:
            if is_from_signal_handler(error):
                self._foreign = error
            else:
                found.append(Seen(step, expression, None, None, f"{type(error).__name__}: {error}"[:MAX_TEXT_CHARS]))
        finally:
            self.notes += lookup.notes
            lookup.finish()


def _shown(value: Any) -> tuple[float | None, str | None]:
    """Return the number, or else the text. Nothing is copied from a device; `.item()` in the expression does that."""
    torch: Any = loaded("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        number = host_number(value)
        return number, f"tensor of {tuple(value.shape)}, {value.dtype}, on {value.device}" if number is None else None
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a NumPy scalar
        value = value.item()
    if isinstance(value, (int, float)):
        try:
            return float(value), None
        except OverflowError:
            return None, f"{str(value)[:MAX_TEXT_CHARS]}"
    text = value if isinstance(value, str) else " ".join(repr(value).split())
    return None, text[:MAX_TEXT_CHARS]
