"""The process that forks query workers, as those who use them see it.

Starting it takes a millisecond here, and some 0.3 s until it can fork; whoever needs it soon starts it first.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys

import probe_agent

from .zygote import ASK

__all__ = ["ZygoteProcess"]

_START = """
import sys
sys.path[:] = sys.argv[3:]
from probe_agent.sql.workers.zygote import main
main(int(sys.argv[1]), merging=sys.argv[2] == "merging")
"""


class ZygoteProcess:
    """The process that forks, seen from here."""

    def __init__(self, *, merging: bool = False) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._said = os.memfd_create("probe-workers")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "PYTHON"))}
        folder = os.path.dirname(os.path.dirname(os.path.abspath(probe_agent.__file__)))
        path = [folder, *(entry for entry in sys.path if entry not in ("", folder))]
        with theirs:
            self._process = subprocess.Popen(
                # -S: no .pth file of anybody's runs in it, ours that starts a recorder among them
                [sys.executable, "-I", "-S", "-c", _START, str(theirs.fileno()), "merging" * merging, *path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                pass_fds=(theirs.fileno(),),
                env={**environment, "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
                start_new_session=True,
            )
        self._numbers = itertools.count(1)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def fork(self, verb: int, threads: int = 0, *, gives_way: bool = False) -> tuple[int, socket.socket]:
        """A new worker, for statements (FORK) or for what hosts have answered (MERGE): its number, and the way to it.
        It may be waiting to be born. Raises OSError when the zygote has gone."""
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        with theirs:
            asked = ASK.pack(verb, number, threads, gives_way)
            socket.send_fds(self._socket, [asked], [theirs.fileno()], socket.MSG_NOSIGNAL)
        return number, ours

    def tell(self, number: int, verb: int) -> None:
        """KILL a worker, or have it GIVE_WAY."""
        with contextlib.suppress(OSError):  # it has gone, and all workers with it
            self._socket.send(ASK.pack(verb, number, 0, False), socket.MSG_NOSIGNAL)

    def why(self) -> str:
        """What it has said of its end."""
        os.lseek(self._said, 0, os.SEEK_SET)
        lines = os.read(self._said, 1 << 16).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.poll()}"

    def close(self) -> None:
        self._socket.close()
        if self._process.poll() is None:
            self._process.kill()  # its workers end with it
        self._process.wait()
        os.close(self._said)
