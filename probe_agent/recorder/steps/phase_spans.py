"""The phases of the last steps as spans of time: in which phase of the step something happened.

The hooks of the training thread add a tuple where a phase ends, with the times that they sum up for `python.steps`.
Our own thread looks moments up, some time later: whether it was the forward shows only where a backward begins.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence

__all__ = ["BACKWARD", "DATA", "EVALUATION", "FORWARD", "GENERATION", "GRADIENTS", "OPTIMIZER", "OTHER", "PhaseSpans"]

DATA, FORWARD, BACKWARD, OPTIMIZER = "data", "forward", "backward", "optimizer"
EVALUATION, GENERATION, OTHER = "evaluation", "generation", "other"
#: Gradients are on again inside a block without: the time is that of what the block is in.
GRADIENTS = "gradients"
_WITHOUT_GRADIENTS = (EVALUATION, GENERATION)
#: What is kept: 20 s of a job that takes 5 ms a step.
MAX_SPANS, MAX_STEPS = 20_000, 4_096

Span = tuple[int, int, str]  # began, ended, phase; times of the monotonic clock in nanoseconds


class PhaseSpans:
    """Nothing is kept until `keep`."""

    def __init__(self) -> None:
        #: Appended to on the training thread, in the order in which they end; one inside another began later.
        self.spans: deque[Span] = deque(maxlen=0)
        #: When each step ended, and its number.
        self.ends: deque[tuple[int, int]] = deque(maxlen=0)

    def keep(self) -> None:
        """From now on."""
        self.spans, self.ends = deque(maxlen=MAX_SPANS), deque(maxlen=MAX_STEPS)

    def forget(self) -> None:
        """Keep nothing any more."""
        self.spans, self.ends = deque(maxlen=0), deque(maxlen=0)

    def step_at(self, when: int, now: int) -> int:
        """The number of the step that was being taken at `when`; `now` is that of the step being taken."""
        ends = list(self.ends)
        at = bisect_right(ends, (when, -sys.maxsize))
        return ends[at][1] if at < len(ends) else now

    def phases_at(self, moments: Sequence[int]) -> Iterator[tuple[str | None, bool]]:
        """For each of `moments`, oldest first: its phase, None where that is not known, and whether that is final."""
        ends, spans = list(self.ends), list(self.spans)  # one step of the interpreter each: the hooks go on meanwhile
        if not ends or not moments:
            yield from ((None, True) for _ in moments)
            return
        first, last = max(ends[0][0], spans[0][1] if len(spans) == MAX_SPANS else 0), ends[-1][0]
        began = max((end for end, _ in ends if end <= moments[0]), default=0)
        at = len(spans)
        while at and spans[at - 1][1] > began:  # what is found out late is of the same step
            at -= 1
        later = sorted(spans[at:], key=lambda span: span[0])
        around: list[Span] = []
        at = 0
        for moment in moments:
            while at < len(later) and later[at][0] <= moment:
                around.append(later[at])
                at += 1
            around = [span for span in around if span[1] > moment]
            if moment <= first:  # in a step that was not seen whole, or too long ago
                yield None, True
                continue
            phase = _innermost(around)
            is_over = moment < last
            yield (OTHER if phase is None and is_over else phase), is_over or phase not in (None, DATA)


def _innermost(around: Sequence[Span]) -> str | None:
    """What the spans around a moment say, the outer one first."""
    phase = with_gradients = None
    for _, _, name in around:
        if name == GRADIENTS:
            phase = with_gradients
        elif name != DATA or phase not in _WITHOUT_GRADIENTS:  # the batches of an evaluation are part of it
            phase = name
            if name not in _WITHOUT_GRADIENTS:
                with_gradients = name
    return phase
