"""The unix socket of this user's host server.

Standard library only: the command line imports it before each question.
"""

from __future__ import annotations

import os
import socket

__all__ = ["host_socket", "listens"]


def host_socket() -> str:
    """Return the path where this user's host server listens when it runs."""
    return f"/dev/shm/probe-{os.getuid()}/host.sock"


def listens(path: str) -> bool:
    """Return whether a process accepts connections on the unix socket `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(0.5)
        try:
            caller.connect(path)
        except OSError:
            return False
        return True
