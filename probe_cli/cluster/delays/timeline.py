"""Each rank's time as a row of moments: it calls, it stands still, it ends a step; between them is its own time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .alignment import Window
from .blocking import Waits
from .calls import Calls

__all__ = ["CALL", "END", "WAIT", "Timeline", "timeline"]

#: Kinds of moments.
CALL, WAIT, END = 0, 1, 2


@dataclass(frozen=True)
class Timeline:
    """One row a moment, by rank and time."""

    kind: np.ndarray
    rank: np.ndarray
    #: Index of the step that it is in, and the call that it is about (-1 at the end of a step).
    step: np.ndarray
    call: np.ndarray
    #: Index into `Waits`, -1 for others.
    wait: np.ndarray
    #: When the rank came to it, and when it went on: the same but for waits.
    at: np.ndarray
    until: np.ndarray
    #: The rank's own time right before it.
    own: np.ndarray
    #: Where the moments of each rank begin, and, at the end, where the last one's end (R + 1).
    bounds: np.ndarray
    #: The moment at which each call was made (by index of the call).
    of_call: np.ndarray

    @property
    def num_ranks(self) -> int:
        return len(self.bounds) - 1


def timeline(calls: Calls, waits: Waits, window: Window) -> Timeline:
    """Put everything in order."""
    num_ranks, num_steps = window.optimizer.shape
    num_calls, num_waits, num_ends = len(calls), len(waits.call), num_ranks * num_steps
    kind = np.repeat([CALL, WAIT, END], [num_calls, num_waits, num_ends])
    rank = np.concatenate([calls.rank, calls.rank[waits.call], np.repeat(np.arange(num_ranks), num_steps)])
    call = np.concatenate([np.arange(num_calls), waits.call, np.full(num_ends, -1)])
    wait = np.concatenate([np.full(num_calls, -1), np.arange(num_waits), np.full(num_ends, -1)])
    at = np.concatenate([calls.start, waits.begin, window.ends[:, 1:].ravel()])
    until = np.concatenate([calls.start, waits.end, window.ends[:, 1:].ravel()])
    order = np.lexsort((kind, at, rank))
    kind, rank, call, wait, at, until = (column[order] for column in (kind, rank, call, wait, at, until))
    bounds = np.searchsorted(rank, np.arange(num_ranks + 1))
    # Two threads of a rank may stand still at the same time: what one is in already is not counted twice.
    span = float(max(until.max(initial=0.0), window.ends.max(initial=0.0)) - window.ends.min(initial=0.0)) + 1.0
    base = window.ends[:, 0]
    until = np.maximum(until, base[rank])
    until = np.maximum.accumulate(until + rank * span) - rank * span
    before = np.empty_like(until)
    before[1:] = until[:-1]
    firsts = bounds[:-1][bounds[:-1] < bounds[1:]]
    before[firsts] = base[rank[firsts]]
    at = np.minimum(np.maximum(at, before), until)
    ended = np.cumsum(kind == END)
    step = ended - (kind == END) - rank * num_steps
    of_call = np.full(num_calls, -1)
    is_call = kind == CALL
    of_call[call[is_call]] = np.flatnonzero(is_call)
    return Timeline(kind, rank, step, call, wait, at, until, at - before, bounds, of_call)
