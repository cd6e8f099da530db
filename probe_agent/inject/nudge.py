"""Nudge for a recorder that waits for the GIL while the job takes it back faster than any thread wakes up.

The main thread is made to shorten the switch interval at its next safe point (recorder/guest/switch_interval.py); the
recorder restores it once it has answered. Runs in the asking process; the main thread stands still for about 0.1 ms.
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

__all__ = ["nudge", "nudge_lines", "wake"]

#: Only while a recorder is there to restore it: one that detaches removes its folder first, and may do so while the GIL
#: is free because this thread looks at the folder. So it looks again.
_LINES = """
import os,sys,time
F={folder!r}
if time.monotonic() < {until:.3f} and os.path.exists(F):
 u=sys.getswitchinterval()
 if round(u*1e6)!=round({short}*1e6):
  sys.setswitchinterval({short})
  if not os.path.exists(F):sys.setswitchinterval(u)
"""
#: A nudge that takes effect later than this does nothing.
_IN_TIME_S = 1.0
#: For the main thread to reach its next safe point and leave our code.
_SAFE_POINT_S = 0.05


def wake(pid: int) -> bool:
    """Nudge process `pid` once. Return False without the right to, or while another attach is under way."""
    try:
        process = Tracee(pid)
        with lock(process, 0.0):
            existing = (folder for folder in folders(process) if names(process, folder) is not None)
            return any(nudge(process, folder) for folder in existing)
    except (AttachRefused, OSError):
        return False


def nudge(process: Tracee, folder: Path) -> bool:
    """Do the same with the lock held. Return False if the main thread cannot be borrowed, or has been already."""
    try:
        known = code_caves.find_caves(process)
        if process.look(process.pid).state != "R" or code_caves.is_queued(process, known, PENDING_CALL):
            return False  # no safe point will come: it is blocked, or a C call holds the GIL
        text = nudge_lines(folder, monotonic() + _IN_TIME_S).encode() + b"\0"
        sent = send(process, process.pid, PENDING_CALL, code_caves.find_free(process, known), text)
    except (AttachRefused, OSError):
        return False
    sent.cave.clean_when_left(process, _SAFE_POINT_S)
    return not sent.complaint


def nudge_lines(folder: Path, until: float) -> str:
    """Return what the main thread runs, which does nothing after `until`, by the monotonic clock in seconds."""
    return _LINES.format(until=until, folder=str(folder), short=SHORT_S)
