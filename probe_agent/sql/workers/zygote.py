"""Process that forks query workers: DuckDB and NumPy are loaded once, and a new worker takes 1 ms.

Runs beside its server, single-threaded and asleep. It knows nothing of the server's state, has one of its sockets, and
ends as soon as that is closed; the workers end with it. Only the zygote signals them: the PID of a process that it has
not waited for cannot be given to another one.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from time import monotonic
from typing import NoReturn

from probe_agent.sql.engine.kernel_limits import die_with, give_way, stop_after_each

from .frames import HEAD

__all__ = ["ASK", "FORK", "GIVE_WAY", "KILL", "TURN_S", "main"]

#: A request: the verb, the worker's number, the threads it may have, for how long it rests after each turn while it
#: gives way, whether it does that from the start.
ASK = struct.Struct("<BQBd?")
FORK, KILL, GIVE_WAY = 1, 2, 3
#: The CPU time of a turn.
TURN_S = 0.02

#: What a worker does with its socket and this many threads, until the socket is closed.
Work = Callable[[socket.socket, int], None]


@dataclass
class _Child:
    number: int
    #: The worker's end of its socket, over which the zygote says how the worker has ended.
    connection: socket.socket
    rest_s: float
    gives_way: bool


def main(descriptor: int, module: str) -> NoReturn:
    """Fork workers that run the `work` of `module`, for the server at the other end of a socket, until it is closed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if the kernel has to end a process, then never the job
    work: Work = import_module(module).work  # once here, for all workers
    gc.freeze()  # or the first collection in a child would copy all of it
    _Zygote(socket.socket(fileno=descriptor), work).run()
    os._exit(0)


class _Zygote:
    def __init__(self, server: socket.socket, work: Work) -> None:
        self._server = server
        self._work = work
        self._children: dict[int, _Child] = {}
        #: When workers that rest go on.
        self._resting: list[tuple[float, int]] = []
        self._ended, waking = socket.socketpair()
        for end in (self._ended, waking):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        self._waking = waking

    def run(self) -> None:
        while True:
            rest = max(0.0, min(self._resting)[0] - monotonic()) if self._resting else None
            ready, _, _ = select.select([self._server, self._ended], [], [], rest)
            if self._ended in ready:
                with contextlib.suppress(BlockingIOError):
                    self._ended.recv(4096)
            self._wait()
            self._continue()
            if self._server in ready:
                asked, descriptors, _, _ = socket.recv_fds(self._server, ASK.size, 1)
                if not asked:
                    return
                verb, number, threads, rest_s, gives_way = ASK.unpack(asked)
                if verb == FORK:
                    self._fork(_Child(number, socket.socket(fileno=descriptors[0]), rest_s, gives_way), threads)
                else:
                    self._tell(number, verb)

    def _fork(self, child: _Child, threads: int) -> None:
        zygote = os.getpid()
        try:
            pid = os.fork()
        except OSError as refusal:
            _say(child.connection, {"unborn": refusal.strerror})
            child.connection.close()
            return
        if pid:
            self._children[pid] = child
            return
        try:
            die_with(zygote)
            os.setsid()
            if child.gives_way:
                give_way(os.getpid())
            if child.rest_s:
                stop_after_each(TURN_S)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (self._server, self._ended, self._waking, *(c.connection for c in self._children.values())):
                other.close()
            self._work(child.connection, threads)
        finally:
            os._exit(0)

    def _tell(self, number: int, verb: int) -> None:
        for pid, child in self._children.items():
            if child.number == number and verb == KILL:
                os.kill(pid, signal.SIGKILL)
            elif child.number == number:
                give_way(pid)
                child.gives_way = True

    def _wait(self) -> None:
        """See which workers have ended, or have been stopped after a turn."""
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if not pid:
                return
            if os.WIFSTOPPED(status):
                rest_s = self._children[pid].rest_s if self._children[pid].gives_way else 0.0
                self._resting.append((monotonic() + rest_s, pid))
                continue
            child = self._children.pop(pid)
            _say(child.connection, {"ended": os.waitstatus_to_exitcode(status)})
            child.connection.close()

    def _continue(self) -> None:
        """Have those go on whose rest is over."""
        now = monotonic()
        for _, pid in (it for it in self._resting if it[0] <= now and it[1] in self._children):
            os.kill(pid, signal.SIGCONT)
        self._resting = [it for it in self._resting if it[0] > now]


def _say(connection: socket.socket, said: dict[str, object]) -> None:
    data = json.dumps(said).encode()
    with contextlib.suppress(OSError):  # the server has gone, or there is no room: it then sees the end of the socket
        connection.send(HEAD.pack(len(data)) + data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
