"""Lock against a second attach to the same process.

The lock is on a folder that the kernel makes for each process and that only its user and root can open, so it leaves
nothing behind, whenever the attaching process dies. Runs in the attaching process; the target does not see it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from time import monotonic, sleep

from probe_agent import untrusted_files
from probe_agent.errors import AttachRefused
from probe_agent.recorder.ring.folder import start_ticks

from .threads.tracee import Tracee

__all__ = ["lock"]


@contextmanager
def lock(process: Tracee, timeout_s: float) -> Iterator[None]:
    """Hold the lock inside the block, and no longer than this process lives. Raises AttachRefused."""
    with untrusted_files.folder_opened(_path(process)) as descriptor:
        deadline = monotonic() + timeout_s
        while True:
            try:
                flock(descriptor, LOCK_EX | LOCK_NB)
                break
            except BlockingIOError:
                if monotonic() > deadline:
                    raise AttachRefused(
                        f"cannot attach to pid {process.pid}: another attach to it is under way",
                        "wait until it is done, then try again",
                    ) from None
            sleep(0.005)
        yield


def _path(process: Tracee) -> str:
    """Return the folder of its descriptors: in its own /proc, which its container shares, or else in ours."""
    its_own = process.from_outside(f"/proc/{process.inner_pid}")
    with suppress(OSError), untrusted_files.opened(its_own + "/stat") as descriptor:
        if start_ticks(os.read(descriptor, 4096).decode("utf-8", "replace")) == process.start_ticks:
            return its_own + "/fd"
    return f"{process.proc}/fd"
