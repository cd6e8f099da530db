"""Runs command lines of `probe` in forks of this process, for the host server that has started it.

Importing the commands takes 0.3 s and more; a fork of a process that has them takes 10 ms. A request is its length,
one JSON object, and three descriptors: stdout, stderr, and one for the exit code. This process has one thread.
It ends when its socket does.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, NoReturn

from .commands import load
from .main import run

__all__ = ["main"]

#: Those that the dashboard asks for; their imports are what a fork saves.
PREPARED = ("compare", "diagnose", "hang", "memory", "query", "ranks", "status")
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Answer on the socket that is our stdin, until its other end is closed."""
    for name in PREPARED:
        load(name)
    for name in ("session", "client.connect"):  # HTTP and the cluster stand behind these
        importlib.import_module(f"probe_cli.{name}")
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the forks
    asked = socket.socket(fileno=os.dup(0))
    while True:
        head, descriptors, _, _ = socket.recv_fds(asked, 4, 3)
        if not head:
            return
        request = json.loads(asked.recv(int.from_bytes(head, "little"), socket.MSG_WAITALL))
        if os.fork() == 0:
            _run(asked, descriptors, request)
        for each in descriptors:
            os.close(each)


def _run(asked: socket.socket, descriptors: list[int], request: dict[str, Any]) -> NoReturn:
    """Be one command: its output goes to the descriptors, and its time is limited."""
    code = 1
    try:
        asked.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, float(request["timeout_s"]))
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        out, err, status = descriptors
        _end_with_reader(status)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        for each in (out, err):
            os.close(each)
        code = run([str(word) for word in request["arguments"]])
        with suppress(OSError):
            sys.stdout.flush()
        os.write(status, str(code).encode())
    finally:
        os._exit(code)


def _end_with_reader(status: int) -> None:
    """Have the kernel end this process, with SIGIO, once nobody waits for its exit code any more."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(status, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(status, fcntl.F_SETFL, fcntl.fcntl(status, fcntl.F_GETFL) | os.O_ASYNC)
