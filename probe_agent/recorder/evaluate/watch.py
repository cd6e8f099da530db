"""Expressions that are evaluated again and again, between two steps, on the training thread.

Names are found as `eval` finds them, anew each time. Nothing that an expression raises leaves `run`, except what the
job's own signal handlers raised meanwhile. Costs the training thread, on the steps that are looked at, the expressions
and what finding their names takes (probe.overhead says how much); on the others some 2 µs.
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
from ..torch import loaded
from .fence import Fence, Stopped
from .foreign import is_from_signal_handler
from .session import Namespace

__all__ = ["FILE", "Seen", "Watch"]

FILE = "<watch-var>"
MAX_FAILURES = 3
MAX_TEXT_CHARS = 200
#: An expression that takes longer holds up the training: it is stopped, and has failed.
LIMIT_S = 1.0


class Seen(NamedTuple):
    """What one expression was after one step: a number, a text, or the exception."""

    step: int
    expression: str
    value: float | None
    text: str | None
    error: str | None


class Watch:
    """A job of the step queue that comes back after every step, until `cancel`, `count` looks, or nothing is left."""

    def __init__(
        self,
        recorder: Recorder,
        codes: dict[str, CodeType],
        every: int,
        count: int | None,
        tell: Callable[[Seen], None],
    ) -> None:
        """`tell` is called on the training thread."""
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
        #: Remarks that nobody has taken yet: where a name was found, what was taken off.
        self.notes: list[str] = []
        self.num_looks = 0

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end, and see to it that no expression holds up the training for long. True once."""
        fence = self._fence
        if fence is not None and (self._cancelled or monotonic() - self._began > LIMIT_S):
            fence.send()
        return self._done.acquire(timeout=timeout_s)

    def cancel(self) -> None:
        """No look from now on."""
        self._cancelled = True
        self._recorder.at_step.withdraw(self)
        if self._fence is not None:
            self._fence.send()

    def run(self) -> None:
        """Between two steps: look, or not yet."""
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
            self.notes.append(f"{expression}: taken off, it has failed {MAX_FAILURES} times")

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
    """The number, or else the text. Nothing is fetched from a device: who wants that says `.item()`."""
    torch: Any = loaded("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.device.type != "cpu":
            return None, f"tensor of {tuple(value.shape)}, {value.dtype}, on {value.device}"
        value = value.item()
    elif getattr(value, "shape", None) == () and hasattr(value, "item"):  # a scalar of NumPy's
        value = value.item()
    if isinstance(value, (int, float)):
        try:
            return float(value), None
        except OverflowError:
            return None, f"{str(value)[:MAX_TEXT_CHARS]}"
    text = value if isinstance(value, str) else " ".join(repr(value).split())
    return None, text[:MAX_TEXT_CHARS]
