"""The process that forks query workers: DuckDB and NumPy are loaded once, and a new worker takes a millisecond.

Runs beside its server, single-threaded and asleep. It knows nothing of the server's state, has none of its sockets but
one, and ends as soon as that is closed; the workers end with it. It is the only one to signal them: a process id whose
process it has not waited for is nobody else's.
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
from dataclasses import dataclass
from typing import NoReturn

from probe_agent.sql.engine.kernel_limits import die_with, give_way

from .frames import HEAD

__all__ = ["ASK", "FORK", "GIVE_WAY", "KILL", "MERGE", "main"]

#: What the server asks: the verb, the worker's number, the threads it may have, whether it gives way from the start.
ASK = struct.Struct("<BQB?")
FORK, KILL, GIVE_WAY, MERGE = 1, 2, 3, 4


@dataclass
class _Child:
    number: int
    #: The worker's own end of its socket: how it has ended is said there.
    connection: socket.socket


def main(descriptor: int, *, merging: bool) -> NoReturn:
    """Fork workers for the server at the other end of a socket until that is closed; those that only put answers
    together if `merging`, which takes less to load."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if the kernel has to end somebody, then never the job
    _load(merging)
    gc.freeze()  # or the first collection in a child would copy all of it
    _Zygote(socket.socket(fileno=descriptor)).run()
    os._exit(0)


def _load(merging: bool) -> None:
    """Import now what every worker needs."""
    import nanoarrow.ipc  # type: ignore[import-untyped]  # noqa: F401

    if merging:
        from .merging import merge  # noqa: F401

        return
    from probe_agent.sql.engine.gather import known_tables

    from .worker import work  # noqa: F401

    known_tables([])


class _Zygote:
    def __init__(self, server: socket.socket) -> None:
        self._server = server
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
                if verb in (FORK, MERGE):
                    self._fork(verb, number, socket.socket(fileno=descriptors[0]), threads, gives_way)
                else:
                    self._tell(number, verb)

    def _fork(self, verb: int, number: int, connection: socket.socket, threads: int, gives_way: bool) -> None:
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
            if verb == MERGE:
                from .merging import merge

                merge(connection)
            else:
                from .worker import work

                work(connection, threads)
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
    with contextlib.suppress(OSError):  # nobody listens any more, or there is no room: the end is seen then
        connection.send(HEAD.pack(len(data)) + data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
