"""Sums of tensors that keep the autograd graphs of what was added to them: `total += loss`, or written into them.

The training thread reads the newest part of their graphs when a step has ended: a thread of the recorder would read a
tensor's graph while an operation in place replaces it. Names and numbers of nodes are read, no saved tensor. At most
1,000 nodes for all sums of a question, which takes less than a millisecond.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from time import monotonic
from typing import Any, NamedTuple

from ..torch import loaded
from .queue import StepQueue

__all__ = ["Holder", "RunningSum", "SumReader"]

#: Of all sums, and of one where others are left.
MAX_NODES, LEAST_NODES = 1_000, 64
#: What a mean or a moving average is made of, too.
_ARITHMETIC = frozenset(("SubBackward0", "MulBackward0", "DivBackward0"))
#: Writing into a part of a tensor makes it the sum of what it was and of what is written: `bank[indices] = keys`.
_ADDS = frozenset(
    (
        "AddBackward0", "CopySlices", "IndexPutBackward0", "IndexCopyBackward0", "IndexAddBackward0",
        "ScatterBackward0", "ScatterAddBackward0",
    )
)  # fmt: skip
_KNOWN = _ARITHMETIC | _ADDS
#: Old versions of torch do not tell it.
_NUMBER = "_sequence_nr"
#: Returns what is in a place now.
Holder = Callable[[], Any]


class RunningSum(NamedTuple):
    """The additions that were seen in a graph, by the numbers that torch gives to operations in their order."""

    additions: tuple[int, ...]

    def goes_back_to(self, earlier: RunningSum) -> bool:
        """Return whether it is made of what `earlier` was made of, or of something older."""
        return min(self.additions) <= max(earlier.additions)

    def since(self, earlier: RunningSum) -> int:
        """Return the number of additions that were made later."""
        return sum(number > max(earlier.additions) for number in self.additions)


class SumReader:
    """An entry of the step queue that reads the sums in these places."""

    def __init__(
        self,
        queue: StepQueue,
        places: Iterable[tuple[Holder, str]],
        num_steps: Callable[[], int],
        is_watched: Callable[[], bool],
        fail: Callable[[str, BaseException], bool],
    ) -> None:
        self._places = list(places)
        self._queue = queue
        self._tensor = getattr(loaded("torch"), "Tensor", None)
        self._num_steps = num_steps
        self._is_watched = is_watched
        self._fail = fail
        self._done = allocate_lock()
        self._done.acquire()
        #: By place; empty until a step has ended. When that was, by time.monotonic(), and after how many steps.
        self.found: dict[str, RunningSum] = {}
        self.read_at, self.read_in = 0.0, 0
        if self._places:
            queue.submit(self)

    def wait(self, timeout_s: float) -> dict[str, RunningSum]:
        """Return what was found when a step ended, nothing if none did."""
        if self._places and not self._done.acquire(timeout=timeout_s):
            self.withdraw()
        return self.found

    def withdraw(self) -> None:
        """Read nothing any more, if it was not read yet."""
        self._queue.withdraw(self)

    def run(self) -> None:
        """Read the graphs."""
        try:
            if not self._is_watched():  # a mode of the job that is active now would see the reads
                self._read()
        except Exception as error:
            if self._fail("running sums", error):
                raise
        finally:
            self._done.release()

    def _read(self) -> None:
        left = MAX_NODES
        found: dict[str, RunningSum] = {}
        for at, (held_now, place) in enumerate(self._places):
            tensor = held_now()
            # A view is no sum, and makes its node anew when it is asked for.
            if type(tensor) is not self._tensor or tensor._is_view() or tensor.is_leaf or left <= 0:
                continue
            share = max(LEAST_NODES, left // (len(self._places) - at))
            additions, num = _additions(tensor.grad_fn, min(left, share))
            left -= num
            if additions:
                found[place] = RunningSum(tuple(additions))
        self.read_at, self.read_in = monotonic(), self._num_steps()
        self.found = found  # all at once: others look at it meanwhile


def _additions(top: Any, most: int) -> tuple[list[int], int]:
    """Return the numbers of the additions that lead to a node without another kind of operation between them, the
    newest first, and how many nodes were looked at."""
    waiting: list[tuple[int, int, Any]] = []
    seen: set[Any] = set()
    additions: list[int] = []

    def put(node: Any) -> None:
        # A node of the job's own functions is not even hashed.
        if type(node).__name__ in _KNOWN and node not in seen and hasattr(node, _NUMBER):
            seen.add(node)
            heappush(waiting, (-getattr(node, _NUMBER)(), len(seen), node))

    put(top)
    num = 1
    while waiting and num < most:
        number, _, node = heappop(waiting)
        num += 1
        if type(node).__name__ in _ADDS:
            additions.append(-number)
        for one, _ in node.next_functions:
            put(one)
    return additions, num
