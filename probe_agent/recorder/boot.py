"""First code of the recorder inside the target, after its loader.

Runs on a thread that was started for it, which becomes the recorder's own thread. The attaching process has made the
target's folder; for a planned start this module makes it.
"""

from __future__ import annotations

import os

from . import __version__
from .guest import own_threads
from .ring.folder import make_own
from .runtime import Runtime, identify

__all__ = ["start", "start_planned"]


def start(folder: str, how: str, host_pid: int, asleep: dict[str, float] | None = None) -> Runtime:
    """Record into `folder` until detached. Return the runtime once everything is undone. `asleep` has for how long each
    thread had not run before."""
    # The job's signals are for the job's threads: a signal that interrupts its sleep must not arrive here.
    own_threads.block_signals()
    ticks = int(os.path.basename(folder).rpartition("-")[2])
    runtime = Runtime(folder, identify(host_pid, ticks, how, __version__, asleep or {}))
    runtime.run()
    return runtime


def start_planned(folder: str) -> Runtime:
    """Do the same for a process that starts the recorder itself and may have made its folder already."""
    return start(folder or make_own(), "planned", os.getpid())
