"""Tells a GIL that one C call keeps from one that changes hands, while somebody waits for it.

Runs in the attaching process. Two looks from outside, some time apart: when the same thread holds it at the same place,
and has not once given up the processor to wait, it has let nobody else have it. A thread in Python code gives it to
whoever asks, and waits until that one has it. Our own thread that loads the recorder gives it up every 2 ms, however
long it may have to wait for a processor.
"""

from __future__ import annotations

from time import monotonic

from probe_agent.wire import ThreadStack

from . import py_spy
from .threads.tracee import Tracee

__all__ = ["GilWatch"]

#: A function of the payload that is on the stack of its thread.
LOADING = "load_and_record"
#: Most attaches are done by the first look, which costs a tenth of a second of a processor.
FIRST_S, APART_S = 0.2, 0.3


class GilWatch:
    """Looks at who holds the GIL of `process`, now and then."""

    def __init__(self, process: Tracee) -> None:
        self.holder: ThreadStack | None = None
        self.next_look = monotonic() + FIRST_S
        self._process = process
        self._num_waits: int | None = None

    def is_kept(self) -> bool:
        """Whether one thread has kept it between the last two looks. Looks only when it is time to."""
        if monotonic() < self.next_look:
            return False
        before = self.holder, self._num_waits
        self.holder = py_spy.gil_holder(self._process.pid)
        self._num_waits = self._waits(self.holder)
        self.next_look = monotonic() + APART_S
        return self.holder is not None and not _is_ours(self.holder) and before == (self.holder, self._num_waits)

    def _waits(self, holder: ThreadStack | None) -> int | None:
        """How often the thread has given up the processor by itself; None where it cannot be told which one it is."""
        try:
            tid = self._process.outer(holder.tid) if holder is not None and holder.tid is not None else None
            return None if tid is None else int(self._process.status(tid)["voluntary_ctxt_switches"])
        except (FileNotFoundError, ProcessLookupError):
            return None  # it has ended since


def _is_ours(holder: ThreadStack) -> bool:
    """Whether it is the thread that the payload has started."""
    return any((frame.func, frame.file) == (LOADING, "<string>") for frame in holder.frames)
