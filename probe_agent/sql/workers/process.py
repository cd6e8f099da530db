"""Client of the process that forks query workers.

Starting that process takes 1 ms here, and it can fork about 0.3 s later.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys

import probe_agent

from .zygote import ASK, FORK

__all__ = ["ZygoteProcess"]

_START = """
import sys
sys.path[:] = sys.argv[3:]
from probe_agent.sql.workers.zygote import main
main(int(sys.argv[1]), sys.argv[2])
"""


class ZygoteProcess:
    """The process that forks workers for statements, or (`merging`) for the answers of many hosts."""

    def __init__(self, *, merging: bool = False) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._said = os.memfd_create("probe-workers")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "PYTHON"))}
        module = "probe_agent.sql.merge_worker" if merging else "probe_agent.sql.workers.worker"
        folder = os.path.dirname(os.path.dirname(os.path.abspath(probe_agent.__file__)))
        path = [folder, *(entry for entry in sys.path if entry not in ("", folder))]
        with theirs:
            self._process = subprocess.Popen(
                # -S: no .pth file runs in it, such as ours, which starts a recorder
                [sys.executable, "-I", "-S", "-c", _START, str(theirs.fileno()), module, *path],
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

    def fork(self, threads: int = 0, *, rest_s: float = 0, gives_way: bool = False) -> tuple[int, socket.socket]:
        """Return the number and the socket of a new worker, which may not have been forked yet. Raises OSError if the
        zygote has gone."""
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        with theirs:
            asked = ASK.pack(FORK, number, threads, rest_s, gives_way)
            socket.send_fds(self._socket, [asked], [theirs.fileno()], socket.MSG_NOSIGNAL)
        return number, ours

    def tell(self, number: int, verb: int) -> None:
        """KILL a worker, or make it GIVE_WAY."""
        with contextlib.suppress(OSError):  # it has gone, and all workers with it
            self._socket.send(ASK.pack(verb, number, 0, 0.0, False), socket.MSG_NOSIGNAL)

    def why(self) -> str:
        """Return the last line that it wrote to stderr, or its exit code."""
        os.lseek(self._said, 0, os.SEEK_SET)
        lines = os.read(self._said, 1 << 16).decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self._process.poll()}"

    def close(self) -> None:
        self._socket.close()
        if self._process.poll() is None:
            self._process.kill()  # its workers end with it
        self._process.wait()
        os.close(self._said)
