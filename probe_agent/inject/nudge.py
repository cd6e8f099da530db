"""Gets a recorder that waits for the GIL its turn, when the job takes the GIL back faster than any thread wakes up.

The main thread is made to shorten the switch interval at its next safe point (recorder/guest/switch_interval.py); the
recorder restores it once it has answered. Runs in the asking process; the main thread stands still for some 0.1 ms.
"""

from __future__ import annotations

from pathlib import Path
from time import monotonic

from probe_agent.errors import AttachRefused
from probe_agent.recorder.guest.switch_interval import SHORT_S

from .folder import folders, names
from .lock import lock
from .threads import code_caves
from .threads.borrow import send
from .threads.mailbox import PENDING_CALL
from .threads.tracee import Tracee

__all__ = ["nudge", "wake"]

#: Only while there is a recorder to restore it: one that detaches removes its folder first.
_LINES = """
import os,sys,time
if time.monotonic() < {until:.3f} and os.path.exists({folder!r}):sys.setswitchinterval({short})
"""
#: A nudge that comes later than this is not wanted any more.
_IN_TIME_S = 1.0
#: For the main thread to come to its next safe point, and to leave our code.
_SAFE_POINT_S = 0.05


def wake(pid: int) -> bool:
    """Nudge process `pid` once. False when that cannot be done: no rights, or others are at it."""
    try:
        process = Tracee(pid)
        with lock(process, 0.0):
            existing = (folder for folder in folders(process) if names(process, folder) is not None)
            return any(nudge(process, folder) for folder in existing)
    except (AttachRefused, OSError):
        return False


def nudge(process: Tracee, folder: Path) -> bool:
    """The same for one who has the lock. False when the main thread cannot be borrowed, or has been already."""
    try:
        known = code_caves.find_caves(process)
        if process.look(process.pid).state != "R" or code_caves.is_queued(process, known, PENDING_CALL):
            return False  # it does not come to a safe point: it is blocked, or somebody holds the GIL in a C call
        text = _LINES.format(until=monotonic() + _IN_TIME_S, folder=str(folder), short=SHORT_S)
        sent = send(process, process.pid, PENDING_CALL, code_caves.find_free(process, known), text.encode() + b"\0")
    except (AttachRefused, OSError):
        return False
    sent.cave.clean_when_left(process, _SAFE_POINT_S)
    return not sent.complaint
