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
from typing import NoReturn

from probe_agent.sql.engine.kernel_limits import die_with, give_way

from .frames import HEAD

__all__ = ["ASK", "FORK", "GIVE_WAY", "KILL", "main"]

#: A request: the verb, the worker's number, the threads it may have, whether it gives way from the start.
ASK = struct.Struct("<BQB?")
FORK, KILL, GIVE_WAY = 1, 2, 3

#: What a worker does with its socket and this many threads, until the socket is closed.
Work = Callable[[socket.socket, int], None]


@dataclass
class _Child:
    number: int
    #: The worker's end of its socket, over which the zygote says how the worker has ended.
    connection: socket.socket


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
        self._ended, waking = socket.socketpair()
        for end in (self._ended, waking):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        self._waking = waking

    def run(self) -> None:
        while True:
            ready, _, _ = select.select([self._server, self._ended], [], [])
            if self._ended in ready:
                with contextlib.suppress(BlockingIOError):
                    self._ended.recv(4096)
            self._bury()
            if self._server in ready:
                asked, descriptors, _, _ = socket.recv_fds(self._server, ASK.size, 1)
                if not asked:
                    return
                verb, number, threads, gives_way = ASK.unpack(asked)
                if verb == FORK:
                    self._fork(number, socket.socket(fileno=descriptors[0]), threads, gives_way)
                else:
                    self._tell(number, verb)

    def _fork(self, number: int, connection: socket.socket, threads: int, gives_way: bool) -> None:
        zygote = os.getpid()
        try:
            pid = os.fork()
        except OSError as refusal:
            _say(connection, {"unborn": refusal.strerror})
            connection.close()
            return
        if pid:
            self._children[pid] = _Child(number, connection)
            return
        try:
            die_with(zygote)
            os.setsid()
            if gives_way:
                give_way(os.getpid())
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (self._server, self._ended, self._waking, *(c.connection for c in self._children.values())):
                other.close()
            self._work(connection, threads)
        finally:
            os._exit(0)

    def _tell(self, number: int, verb: int) -> None:
        for pid, child in self._children.items():
            if child.number == number and verb == KILL:
                os.kill(pid, signal.SIGKILL)
            elif child.number == number:
                give_way(pid)

    def _bury(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            child = self._children.pop(pid)
            _say(child.connection, {"ended": os.waitstatus_to_exitcode(status)})
            child.connection.close()


def _say(connection: socket.socket, said: dict[str, object]) -> None:
    data = json.dumps(said).encode()
    with contextlib.suppress(OSError):  # the server has gone, or there is no room: it then sees the end of the socket
        connection.send(HEAD.pack(len(data)) + data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
