"""The recorder of a test's program, imported as a package: its folders can be set, and its parts replaced.

A recorder that is carried in, or started by an environment variable, answers a detach once its own modules are gone
(recorder/guest/departure.py). This one keeps its modules and only answers.
"""

from __future__ import annotations

import _thread
from contextlib import suppress

from probe_agent.recorder import boot
from probe_agent.recorder.guest import switch_interval

__all__ = ["start"]


def start(folder: str = "") -> None:
    """Record on a new thread until detached, into `folder` if it has been made already."""
    _thread.start_new_thread(_record, (folder,))


def _record(folder: str) -> None:
    runtime = boot.start_planned(folder)
    switch_interval.rest()
    for connection, answer in runtime.farewells():
        with suppress(OSError):  # the client has left
            connection.sendall(answer)
        connection.close()
