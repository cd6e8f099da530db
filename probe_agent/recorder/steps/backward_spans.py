"""Spans of the modules' backward in a sampled step, derived from torch's sequence numbers of graph nodes.

torch numbers the nodes of its graph in the order in which the forward makes them, and runs backward from the highest
number down. A module's forward makes a range of numbers. When a hooked node is about to run, backward is inside the
modules whose ranges contain its number, and has left those whose ranges begin after it. A span ends at the latest with
the run of the engine.

Runs with module_spans.py, on the same thread; about 1 µs per span.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

__all__ = ["RUN_ENDED", "BackwardSpans"]

#: Position at the end of a run of the engine, which ends every span.
RUN_ENDED = -1

Span = tuple[int, int, int, int]  # name, end, duration, duration without the spans inside it


class _Call:
    """A forward and the numbers of its nodes, from `begin` to before `end`."""

    __slots__ = ("begin", "children", "end", "name", "opened", "parent", "run")

    def __init__(self, begin: int, end: int, name: int) -> None:
        self.begin = begin
        self.end = end
        self.name = name
        self.parent: _Call | None = None
        self.opened = self.children = 0
        self.run = -1  # last run in which its span began


class BackwardSpans:
    """Spans of backward for the forwards of a step, and of the sampled step right before it."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []  # by start, outer before inner
        self._begins: list[int] = []
        self._ended: list[_Call] = []  # by end; not yet in `_calls`
        self._since = 0  # first node number of this step
        self._open: list[_Call] = []
        self._run = 0
        self._number = 0

    def begin_step(self, number: int) -> None:
        """Begin a sampled step, in which backward may run through the graph of the step before."""
        if number != self._number + 1:
            self._calls.clear()
            self._begins.clear()
        self._number = number
        self._since = max((call.end for call in self._calls), default=0)

    def end_step(self) -> None:
        """End the step."""
        self._sort()
        self._calls = [call for call in self._calls if call.begin >= self._since]
        self._begins = [call.begin for call in self._calls]
        self._open.clear()
        self._run += 1

    def add(self, begin: int, end: int, name: int) -> None:
        """Add a forward that has made the nodes from `begin` to before `end`."""
        self._ended.append(_Call(begin, end, name))

    def note(self, now: int, position: int) -> Iterator[Span]:
        """Note that node `position` is about to run, or that the run has ended; yield the spans that have ended."""
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
        """Return the innermost call that made node `position`."""
        if self._ended:
            self._sort()
        at = bisect_right(self._begins, position) - 1
        call = self._calls[at] if at >= 0 else None
        while call is not None and call.end <= position:
            call = call.parent
        return call

    def _sort(self) -> None:
        """Merge the ended calls into the others; of two calls with the same nodes the outer comes first."""
        self._calls = sorted([*reversed(self._ended), *self._calls], key=lambda call: (call.begin, -call.end))
        self._ended.clear()
        self._begins = [call.begin for call in self._calls]
        around: list[_Call] = []
        for call in self._calls:
            while around and around[-1].end <= call.begin:
                around.pop()
            call.parent = around[-1] if around else None
            around.append(call)
