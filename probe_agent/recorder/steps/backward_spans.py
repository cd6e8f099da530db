"""Spans of the modules' backward in a sampled step, told apart by torch's own numbers of the operators.

torch numbers the nodes of its graph in the order in which the forward makes them, and goes through them from the
highest number down. So what a module's forward has made are the numbers from one it began at to one it ended at, and
where a watched node is about to run, the backward is inside the modules in whose ranges its number lies, and has left
those that begin after it. A span ends at the latest where the run of the engine ends.

Runs where the rows of a step are made (windows.py); about 1 µs a span.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

__all__ = ["RUN_ENDED", "BackwardSpans"]

#: The position at which a run of the engine has ended: every span has.
RUN_ENDED = -1

Span = tuple[int, int, int, int]  # name, where it ended, how long it took, how long without those inside it


class _Call:
    """A forward, and the numbers of the nodes it has made: from `begin` on, `end` no more."""

    __slots__ = ("begin", "children", "end", "name", "opened", "parent", "run")

    def __init__(self, begin: int, end: int, name: int) -> None:
        self.begin = begin
        self.end = end
        self.name = name
        self.parent: _Call | None = None
        self.opened = self.children = 0
        self.run = -1  # the last one in which its span began


class BackwardSpans:
    """What the forwards of a step, and of the sampled one right before it, have taken in backward."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []  # in the order in which they began, the outer one first
        self._begins: list[int] = []
        self._ended: list[_Call] = []  # in the order in which they ended; not yet among those
        self._since = 0  # the nodes of this step are numbered from here on
        self._open: list[_Call] = []
        self._run = 0
        self._number = 0

    def begin_step(self, number: int) -> None:
        """A sampled step begins. What the step before has made may be gone backward through in this one."""
        if number != self._number + 1:
            self._calls.clear()
            self._begins.clear()
        self._number = number
        self._since = max((call.end for call in self._calls), default=0)

    def end_step(self) -> None:
        """The step is over."""
        self._sort()
        self._calls = [call for call in self._calls if call.begin >= self._since]
        self._begins = [call.begin for call in self._calls]
        self._open.clear()
        self._run += 1

    def add(self, begin: int, end: int, name: int) -> None:
        """A forward has ended that has made the nodes from `begin` to before `end`."""
        self._ended.append(_Call(begin, end, name))

    def note(self, now: int, position: int) -> Iterator[Span]:
        """The node numbered `position` is about to run, or the run has ended: gives the spans that are over."""
        still = self._open
        while still and still[-1].begin > position:
            call = still.pop()
            duration = now - call.opened
            if still:
                still[-1].children += duration
            yield call.name, now, duration, duration - call.children
        if position == RUN_ENDED:
            self._run += 1
            return
        found = self._innermost(position)
        entered = []
        while found is not None and found.run != self._run:
            entered.append(found)
            found = found.parent
        for call in reversed(entered):
            call.run, call.opened, call.children = self._run, now, 0
            still.append(call)

    def _innermost(self, position: int) -> _Call | None:
        """The call that has made the node numbered `position`."""
        if self._ended:
            self._sort()
        at = bisect_right(self._begins, position) - 1
        call = self._calls[at] if at >= 0 else None
        while call is not None and call.end <= position:
            call = call.parent
        return call

    def _sort(self) -> None:
        """Put those that have ended among the others: one that has made no more than another one in it comes first."""
        self._calls = sorted([*reversed(self._ended), *self._calls], key=lambda call: (call.begin, -call.end))
        self._ended.clear()
        self._begins = [call.begin for call in self._calls]
        around: list[_Call] = []
        for call in self._calls:
            while around and around[-1].end <= call.begin:
                around.pop()
            call.parent = around[-1] if around else None
            around.append(call)
