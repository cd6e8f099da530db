"""Spans of the phases of the last steps, to tell in which phase something happened.

The hooks of the training thread append a tuple at the end of a phase, with the times that they sum for `python.steps`.
The recorder's thread looks moments up later: a forward is known only once a backward has begun.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence

__all__ = ["BACKWARD", "DATA", "EVALUATION", "FORWARD", "GENERATION", "GRADIENTS", "OPTIMIZER", "OTHER", "PhaseSpans"]

DATA, FORWARD, BACKWARD, OPTIMIZER = "data", "forward", "backward", "optimizer"
EVALUATION, GENERATION, OTHER = "evaluation", "generation", "other"
#: Gradients enabled inside a block without: the time belongs to the phase around that block.
GRADIENTS = "gradients"
_WITHOUT_GRADIENTS = (EVALUATION, GENERATION)
#: Limits: 20 s of a job with steps of 5 ms.
MAX_SPANS, MAX_STEPS = 20_000, 4_096

Span = tuple[int, int, str]  # began, ended, phase; times of the monotonic clock in nanoseconds


class PhaseSpans:
    """Spans and ends of steps; empty until `keep`."""

    def __init__(self) -> None:
        #: Appended on the training thread, ordered by end; a span inside another began later.
        self.spans: deque[Span] = deque(maxlen=0)
        #: End and number of each step.
        self.ends: deque[tuple[int, int]] = deque(maxlen=0)

    def keep(self) -> None:
        """Keep spans from now on."""
        self.spans, self.ends = deque(maxlen=MAX_SPANS), deque(maxlen=MAX_STEPS)

    def forget(self) -> None:
        """Drop all spans and keep no more."""
        self.spans, self.ends = deque(maxlen=0), deque(maxlen=0)

    def step_at(self, when: int, now: int) -> int:
        """Return the number of the step that ran at `when`; `now` is the number of the running step."""
        ends = list(self.ends)
        at = bisect_right(ends, (when, -sys.maxsize))
        return ends[at][1] if at < len(ends) else now

    def phases_at(self, moments: Sequence[int]) -> Iterator[tuple[str | None, bool]]:
        """Yield for each of `moments`, oldest first, its phase, None if unknown, and whether that is final."""
        ends, spans = list(self.ends), list(self.spans)  # one atomic copy each: the hooks go on meanwhile
        if not ends or not moments:
            yield from ((None, True) for _ in moments)
            return
        first, last = max(ends[0][0], spans[0][1] if len(spans) == MAX_SPANS else 0), ends[-1][0]
        began = max((end for end, _ in ends if end <= moments[0]), default=0)
        at = len(spans)
        while at and spans[at - 1][1] > began:  # spans added late belong to the same step
            at -= 1
        later = sorted(spans[at:], key=lambda span: span[0])
        around: list[Span] = []
        at = 0
        for moment in moments:
            while at < len(later) and later[at][0] <= moment:
                around.append(later[at])
                at += 1
            around = [span for span in around if span[1] > moment]
            if moment <= first:  # in a step that was not seen from its start, or too long ago
                yield None, True
                continue
            phase = _innermost(around)
            is_over = moment < last
            yield (OTHER if phase is None and is_over else phase), is_over or phase not in (None, DATA)


def _innermost(around: Sequence[Span]) -> str | None:
    """Return the phase of the spans around a moment, given outer first."""
    phase = with_gradients = None
    for _, _, name in around:
        if name == GRADIENTS:
            phase = with_gradients
        elif name != DATA or phase not in _WITHOUT_GRADIENTS:  # batches of an evaluation are part of it
            phase = name
            if name not in _WITHOUT_GRADIENTS:
                with_gradients = name
    return phase
