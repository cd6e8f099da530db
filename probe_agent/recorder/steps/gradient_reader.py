"""Which parameters have a gradient, its size and version, read on the training thread when a step has ended.

No thread of the recorder may read `.grad` while the job works. `parameter.grad = None` frees the gradient, gives the
GIL away meanwhile, and clears the parameter's slot afterwards (torch 2.13): another thread that reads the slot then
gets an object that is being freed, and the process dies of SIGSEGV: within seconds if it reads all the time
(tests/integration/samples/test_gradients.py).

Takes 1 µs per parameter on the training thread, 1 ms a step at most, and only when somebody asks. If no step ends and
the process does nothing, as in a job that hangs, the thread of the request reads them.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Iterable, Iterator
from time import monotonic, perf_counter_ns, process_time
from typing import Any, NamedTuple
from weakref import ref

from ..torch import inventory
from .queue import StepQueue

__all__ = ["Gradient", "GradientReader", "Gradients", "version_of"]

BUDGET_NS = 1_000_000
#: Time for a step to end; a process that works gets the second one as well. Both together are less than a question may
#: take (3 s): of a job of long steps it would have no answer at all.
WAIT_S, WAIT_LONGER_S, POLL_S = 1.0, 1.0, 0.02
#: A process that has used less of a core while nothing ended does nothing.
IDLE_SHARE = 0.02
#: The questions of one command share a look; one that found no step to end for longer.
FRESH_S, FRESH_WITHOUT_S = 1.0, 5.0


class Gradient(NamedTuple):
    """Size in MiB, and the number of changes in place; NULL for one made in inference mode, which does not count."""

    size: float
    version: int | None


class Gradients:
    """The gradients that were read, by parameter; `notes` say why others were not."""

    def __init__(self) -> None:
        self._read: dict[int, Gradient | None] = {}
        self.notes: list[str] = []

    def add(self, parameter: Any) -> None:
        """Read the gradient of a parameter, on a thread that may."""
        gradient = parameter.grad if parameter.is_leaf else None
        self._read[id(parameter)] = (
            None if gradient is None else Gradient(inventory.mib(gradient), version_of(gradient))
        )

    def of(self, parameter: Any) -> Gradient | None:
        """Return the gradient of a parameter, None if it has none or that is not known."""
        return self._read.get(id(parameter))

    def is_known(self, parameter: Any) -> bool:
        """Return whether it was read if the parameter has a gradient."""
        return id(parameter) in self._read


class _Entry:
    """An entry of the step queue that reads what fits into its budget and comes back after the next step."""

    def __init__(
        self,
        queue: StepQueue,
        parameters: Iterable[Any],
        is_watched: Callable[[], bool],
        fail: Callable[[str, BaseException], bool],
    ) -> None:
        listed = [ref(parameter) for parameter in parameters]
        self.num = len(listed)
        self._left: Iterator[Callable[[], Any]] = iter(listed)
        self._queue = queue
        self._is_watched = is_watched
        self._fail = fail
        self._done = allocate_lock()
        self._done.acquire()
        self.found = Gradients()

    def wait(self, timeout_s: float) -> bool:
        """Return whether everything is read."""
        ends = monotonic() + timeout_s
        while not self._done.acquire(timeout=POLL_S):
            if monotonic() >= ends or self._queue.closed:
                return False
        return True

    def run(self) -> None:
        """Read until the budget is spent."""
        is_over = False
        try:
            # A mode of the job that is active now would see the reads.
            is_over = not self._is_watched() and self.read(perf_counter_ns() + BUDGET_NS)
        except Exception as error:
            is_over = True
            if self._fail("gradients", error):
                raise
        finally:
            if is_over:
                self._done.release()
            else:
                self._queue.submit(self)

    def read(self, deadline: float) -> bool:
        """Return whether everything is read."""
        for parameter in self._left:
            alive = parameter()
            if alive is not None:
                self.found.add(alive)
            if perf_counter_ns() >= deadline:
                return False
        return True


class GradientReader:
    """Reads on behalf of threads of the recorder. `parameters` finds those of the job; `is_watched` returns whether the
    job has a mode active that would see the reads."""

    def __init__(
        self,
        queue: StepQueue,
        parameters: Callable[[], Iterable[Any]],
        is_watched: Callable[[], bool],
        fail: Callable[[str, BaseException], bool],
    ) -> None:
        self._queue = queue
        self._parameters = parameters
        self._is_watched = is_watched
        self._fail = fail
        self._newest = Gradients()
        self._fresh_until = 0.0

    def read(self) -> Gradients:
        """Return which parameters have a gradient; waits up to 2 s for steps to end."""
        if monotonic() >= self._fresh_until:
            self._newest = self._look()
            self._fresh_until = monotonic() + (FRESH_WITHOUT_S if self._newest.notes else FRESH_S)
        return self._newest

    def _look(self) -> Gradients:
        entry = _Entry(self._queue, self._parameters(), self._is_watched, self._fail)
        if not entry.num:
            return entry.found
        self._queue.submit(entry)
        began, used = monotonic(), process_time()
        if entry.wait(WAIT_S):
            return entry.found
        is_idle = not self._queue.closed and process_time() - used < IDLE_SHARE * (monotonic() - began)
        if not is_idle and entry.wait(WAIT_LONGER_S):
            return entry.found
        if self._queue.withdraw(entry) and is_idle:
            entry.read(float("inf"))
            return entry.found
        entry.found.notes.append(
            f"not all gradients were read: no step ended within {monotonic() - began:.0f} s; the last step was"
            f" {self._queue.last_step()}"
        )
        return entry.found


def version_of(tensor: Any) -> int | None:
    """Return how often a tensor was changed in place; None for one made in inference mode, which does not count."""
    try:
        return int(tensor._version)
    except RuntimeError:
        return None
