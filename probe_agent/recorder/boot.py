"""The first code of ours inside the target.

Runs on a thread that was started for it and becomes the recorder's only thread. The attaching process made the
folder; for a planned start we make it ourselves.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from socket import MSG_NOSIGNAL, socket

from . import __version__
from .guest import switch_interval
from .ring.folder import make_own
from .runtime import Runtime, identify

__all__ = ["start", "start_planned"]


def start(folder: str, how: str, host_pid: int) -> list[tuple[socket, bytes]]:
    """Record into `folder` until detached. Returns when all of it is undone: who has detached, and the answer that
    tells them so."""
    # The job's signals are for the job's threads: what interrupts its sleep must not end up here.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ticks = int(os.path.basename(folder).rpartition("-")[2])
    runtime = Runtime(folder, identify(host_pid, ticks, how, __version__))
    runtime.run()
    return runtime.farewells()


def start_planned(folder: str) -> None:
    """The same for a process that starts the recorder itself, and may have made its folder already."""
    farewells = start(folder or make_own(), "planned", os.getpid())
    switch_interval.rest()
    for connection, answer in farewells:
        with suppress(OSError):  # whoever asked has left
            connection.send(answer, MSG_NOSIGNAL)
        connection.close()
