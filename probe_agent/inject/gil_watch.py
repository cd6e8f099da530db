"""Watch on the GIL: tells one that a C call keeps from one that changes hands.

Runs in the attaching process. Between two looks from outside, a thread that holds the GIL at the same place and has not
once given up the CPU to wait has released the GIL to no other thread. A thread in Python code hands it over on request,
and waits until the other one has it; on a busy host our thread may get no CPU in which to ask for it, so a third look
has to show the same. Our own thread that loads the recorder releases it every 2 ms, however long it may wait for a CPU.
"""

from __future__ import annotations

from time import monotonic

from probe_agent.wire import ThreadStack

from . import py_spy
from .threads.tracee import Tracee

__all__ = ["GilWatch"]

#: The function of the payload that is on the stack of its thread.
LOADING = "load_and_record"
#: Most attaches are done before the first look, which costs 0.1 s of a CPU.
FIRST_S, APART_S = 0.2, 0.3
#: Looks in a row that show the same.
ENOUGH = 3


class GilWatch:
    """Looks now and then which thread of `process` holds the GIL."""

    def __init__(self, process: Tracee) -> None:
        self.holder: ThreadStack | None = None
        self.next_look = monotonic() + FIRST_S
        self._process = process
        self._num_waits: int | None = None
        self._num_same = 0

    def is_kept(self) -> bool:
        """Return whether one thread has kept it between the last three looks. Looks only when the next one is due."""
        if monotonic() < self.next_look:
            return False
        before = self.holder, self._num_waits
        self.holder = py_spy.gil_holder(self._process.pid)
        self._num_waits = self._waits(self.holder)
        self.next_look = monotonic() + APART_S
        is_kept = self.holder is not None and not _is_ours(self.holder)
        self._num_same = self._num_same + 1 if is_kept and before == (self.holder, self._num_waits) else int(is_kept)
        return self._num_same >= ENOUGH

    def _waits(self, holder: ThreadStack | None) -> int | None:
        """Return how often the thread has given up the CPU by itself; None if the thread is not known."""
        try:
            tid = self._process.outer(holder.tid) if holder is not None and holder.tid is not None else None
            return None if tid is None else int(self._process.status(tid)["voluntary_ctxt_switches"])
        except (FileNotFoundError, ProcessLookupError):
            return None  # it has ended


def _is_ours(holder: ThreadStack) -> bool:
    """Return whether it is the thread that the payload has started."""
    return any((frame.func, frame.file) == (LOADING, "<string>") for frame in holder.frames)
