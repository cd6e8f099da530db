"""Processes forked by a Python that has imported what they need (fork_server.py): torch, or what a command imports.

For tests that look at a job which is already under way, or at what a command answers. Where a test is about how a
process starts (a planned start, a launcher, what is imported when), it starts a Python of its own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from select import select
from threading import Lock
from typing import Any

from .fork_server import MAX_BYTES

__all__ = ["ForkServer", "Forked"]

SERVER = Path(__file__).with_name("fork_server.py")


class ForkServer:
    """One such Python, with these modules, started on the first use; it ends with us."""

    def __init__(self, *modules: str, **environ: str) -> None:
        self._modules = modules
        self._environ = environ
        self._orders, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = Lock()

    def fork(self, streams: Sequence[int], **order: object) -> int:
        """Return the PID of a new process."""
        return int(self._ask(order, streams))

    def wait(self, pid: int) -> tuple[int, int]:
        """Return what `os.waitpid(pid, os.WNOHANG)` would for a child of ours."""
        ended, status = self._ask({"wait": pid})
        return ended, status

    def close(self) -> None:
        self._orders.close()
        self._theirs.close()
        if self._process is not None:
            self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._theirs:
            number = self._theirs.fileno()
            command = [sys.executable, str(SERVER), str(number), *self._modules]
            ours = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
            return subprocess.Popen(command, pass_fds=[number], env=ours | self._environ)

    def _ask(self, order: object, streams: Sequence[int] = ()) -> Any:
        with self._turn:
            self._process = self._process or self._start()
            socket.send_fds(self._orders, [json.dumps(order).encode()], streams)
            answer = self._orders.recv(MAX_BYTES)
        assert answer, f"the fork server has ended with {self._process.wait()}"
        return json.loads(answer)


_WITH_TORCH = ForkServer("torch")


class Forked(subprocess.Popen[Any]):
    """`subprocess.Popen([sys.executable, *COMMAND])` for a program with torch. It is no child of ours, so that
    starting it and waiting for it, which Popen has in three methods, are the server's."""

    def __init__(
        self, command: Sequence[object], *, server: ForkServer = _WITH_TORCH, needs: Sequence[str] = (), **how: Any
    ) -> None:
        self._server = server
        self._needs = needs
        super().__init__([str(word) for word in command], **how)

    def _execute_child(
        self, args: list[str], executable: None, preexec_fn: None, close_fds: bool, pass_fds: Sequence[int],
        cwd: str | None, env: Mapping[str, str] | None, startupinfo: None, creationflags: int, shell: bool,
        *pipes_and_more: Any,
    ) -> None:  # fmt: skip
        assert not preexec_fn, "nothing of ours runs in the child"
        ends = pipes_and_more[:6]  # of stdin, stdout and stderr: to read from, and to write to
        theirs, ours = (ends[0], ends[3], ends[5]), (ends[1], ends[2], ends[4])
        self.pid = self._server.fork(
            [number if given == -1 else given for number, given in enumerate(theirs)],
            command=args,
            needs=self._needs,
            environ=dict(os.environ if env is None else env),
            folder=os.fspath(cwd or os.getcwd()),
        )
        self._child_created = True
        for given, kept in zip(theirs, ours, strict=True):
            if kept != -1:
                os.close(given)

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        if self.returncode is None:
            ended, status = self._server.wait(self.pid)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if not wait_flags & os.WNOHANG:
            descriptor = os.pidfd_open(self.pid)
            select([descriptor], [], [])
            os.close(descriptor)
        return self._server.wait(self.pid)
