"""The host server's process: its sockets, the files that lead to it, and when it ends.

`serve` is for people and for PROBE_LISTEN, `linger` for the server that a command starts. Runs beside the targets,
never in one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import gc
import ipaddress
import json
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Thread
from time import monotonic, sleep, time

import probe_agent
from probe_agent.activate.listen import ListenRefused, inherited, listening
from probe_agent.errors import BadRequest, ProbeError
from probe_agent.recorder.ring.folder import BASES, user_folder
from probe_agent.targets import TargetDirectory
from probe_agent.tokens import server_tokens

from .access.quota import Quota
from .access.roles import Access
from .app import create_app
from .connections import tls_context
from .hosting import Hosting
from .location import Record, build, find, host_socket, locked, release, usable_folder, write_record

__all__ = ["linger", "serve"]

#: How long a server lingers once the last target is detached: whoever attaches again at once finds it.
AFTER_DETACH_S = 2.0
#: A target that still reached us has said who it is by then.
LAST_LOOK_S = 1.0
#: How often a server that lingers looks whether it is still wanted.
_TICK_S = 0.25
#: A connection that the kernel has queued is accepted by then.
_QUEUED_S = 0.02
#: How long the query workers may take to end.
_REAP_S = 1.0
_PR_SET_CHILD_SUBREAPER = 36


def serve(
    listen: str | None,
    path: str | None,
    linger_s: float | None = None,
    *,
    insecure: bool = False,
    tls: tuple[str, str | None, str | None] | None = None,
    readers: tuple[int, float],
) -> int:
    """Serve on the unix socket `path` (or this user's) and, when `listen` is given, on TCP, until told to end.

    With `linger_s`, until this host has had no living target for so long. With `insecure`, loopback TCP without a
    token. `tls` names the files of the certificate, of its key, and of who signs the certificates of clients. `readers`
    is the most memory (MB) and time (s) that a query may take with the token for reading.
    """
    again = dict(os.environ)
    context = tls_context(*tls) if tls else None
    tokens = server_tokens() if listen and not insecure else None
    sockets = _sockets(listen, path, insecure)
    places = _Places(sockets)
    if listen:
        known = tokens.source if tokens else "no token is wanted: every user of this host can run code in the targets"
        _say(f"listening on http{'s' if tls else ''}://{listen} ({known})")
    if not tls and not all(_is_unix(each) or _is_loopback(each) for each in sockets):
        _say(
            "warning: without TLS, tokens and answers can be read on their way by others on that network;"
            " give --tls-cert and --tls-key, or listen on 127.0.0.1 and use ssh -L"
        )
    for name in places.paths:
        _say(f"listening on unix:{name}")
    _prepare()
    directory = TargetDirectory()
    try:
        app = create_app(directory, access=Access(tokens, Quota(*readers), insecure=insecure))
        hosting = Hosting(app, sockets, context, places.leave, _page_address(listen, bool(tls)))
        with _announced(listen, bool(tls)):
            hosting.run(None if linger_s is None else partial(_end_without_targets, directory, linger_s))
    finally:
        places.leave()
    if linger_s is not None:
        sleep(LAST_LOOK_S)
    if linger_s is not None and _has_living(directory):  # it came while we were closing, and found us still there
        os.execve(sys.executable, sys.orig_argv, again)
    return 0


def linger(path: str, linger_s: float, ready: int | None) -> int:
    """Serve on the unix socket `path` alone, until there has been no client for `linger_s`, the last target has been
    detached, or another server has the place; with 0, until stdin is closed. `ready` is a descriptor that is told once
    we answer. A refusal is one line on stderr and exit code 1."""
    try:
        return _linger(path, linger_s, ready)
    except ProbeError as refusal:
        sys.exit(f"{refusal.message}; {refusal.hint}")


def _linger(path: str, linger_s: float, ready: int | None) -> int:
    os.umask(0o077)
    _prepare()
    app = create_app(access=Access(None))
    try:
        listener = listening("unix:" + path)
    except ListenRefused as refusal:
        raise BadRequest(refusal.message, refusal.hint) from None
    places = _Places([listener])
    lingering = _Lingering(places, linger_s, app.state.engine.close)
    app.state.leave = lingering.leave
    write_record(path, Record(os.getpid(), probe_agent.__version__, build(), time(), linger_s))

    def tell() -> None:
        if ready is not None:
            os.write(ready, b".")
            os.close(ready)

    if not linger_s:
        # Query workers whose parent ends before them become our children, not those of process 1.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        Hosting(app, [listener], None, places.leave).run(lingering.watch, tell)
    finally:
        places.leave()
    if not linger_s:
        _reap()
    return 0


class _Places:
    """The unix sockets where we are found, as long as they are ours."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        paths = [each.getsockname() for each in sockets if _is_unix(each)]
        self.paths = {path: os.stat(path).st_ino for path in paths}

    @property
    def are_ours(self) -> bool:
        return any(map(self._is_ours, self.paths))

    def leave(self) -> None:
        """Take away what leads to us; another server may have the place afterwards."""
        for path in filter(self._is_ours, self.paths):
            os.unlink(path)
            with contextlib.suppress(OSError, ValueError):
                record = path.removesuffix("sock") + "json"
                with open(record) as file:
                    is_our_record = json.load(file)["pid"] == os.getpid()
                if is_our_record:
                    os.unlink(record)

    def _is_ours(self, path: str) -> bool:
        try:
            return os.stat(path).st_ino == self.paths[path]
        except OSError:
            return False


class _Lingering:
    """When a server ends that a command has started. No client is cut off: first its place is given up, so that nobody
    new comes, and it ends once the last client has gone."""

    def __init__(self, places: _Places, linger_s: float, end_workers: Callable[[], None]) -> None:
        self._places = places
        self._end_workers = end_workers
        self._linger_s = linger_s

    def leave(self) -> None:
        """End soon: the last target has been detached. Any thread may say so."""
        self._linger_s = min(self._linger_s, AFTER_DETACH_S)

    async def watch(self, hosting: Hosting) -> None:
        """End `hosting` when it is time. Runs on its event loop."""
        if not self._linger_s:
            await self._until_stdin_is_closed(hosting)
        used = monotonic()
        while self._places.are_ours or hosting.has_clients:
            await asyncio.sleep(_TICK_S)
            if hosting.has_clients:
                used = monotonic()
            if monotonic() - used > self._linger_s:
                self._places.leave()
                await asyncio.sleep(_QUEUED_S)
        hosting.end()

    async def _until_stdin_is_closed(self, hosting: Hosting) -> None:
        closed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def read() -> None:
            sys.stdin.buffer.read()
            loop.call_soon_threadsafe(closed.set)

        Thread(target=read, daemon=True).start()
        await closed.wait()
        self._places.leave()
        await asyncio.sleep(_QUEUED_S)
        if not hosting.has_clients:
            self._end_workers()
            _reap()
            os._exit(0)  # the command waits for us, and there is nothing else to put in order


def _reap() -> None:
    """Wait for all children, which are ending, so that nobody inherits them."""
    ends = monotonic() + _REAP_S
    with contextlib.suppress(ChildProcessError):
        while monotonic() < ends:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                sleep(0.002)


def _prepare() -> None:
    gc.set_threshold(700)  # the commands have set another: unlike them, this process lives long
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # connections that others keep open take none of ours


def _sockets(listen: str | None, path: str | None, insecure: bool) -> list[socket.socket]:
    """Those to listen on; the first may have been bound for us by whoever started us."""
    found = inherited()
    try:
        sockets = [found or listening(listen)] if listen else []
        if insecure and not all(map(_is_loopback, sockets)):
            raise BadRequest(
                f"refused to listen on {listen} without a token: whoever reaches it could run code in the targets",
                "leave --insecure out, or listen on 127.0.0.1",
            )
        if path is not None:
            sockets.append(found if found and not listen else listening("unix:" + path))
        elif (usual := _usual_socket(listen)) is not None:
            sockets.append(usual)
    except ListenRefused as refusal:
        raise BadRequest(refusal.message, refusal.hint) from None
    return sockets


def _usual_socket(listen: str | None) -> socket.socket | None:
    """This user's socket, taken over from a server that lingers. Where another server that somebody runs has it: None
    if there is another address to `listen` on. Raises ListenRefused."""
    folder = usable_folder()
    with locked(folder):
        found = find()
        if found is not None and found.is_lingering:
            release(found.path)
        elif found is not None and listen:
            return None
        path = host_socket(folder)
        listener = listening("unix:" + path)
        write_record(path, Record(os.getpid(), probe_agent.__version__, build(), time(), None, listen or ""))
        return listener


async def _end_without_targets(directory: TargetDirectory, linger_s: float, hosting: Hosting) -> None:
    last = monotonic()
    while monotonic() - last < linger_s:
        await asyncio.sleep(max(0.2, linger_s / 20))
        if await asyncio.to_thread(_has_living, directory):
            last = monotonic()
    hosting.end()


def _has_living(directory: TargetDirectory) -> bool:
    return any(target.is_alive for target in directory.targets())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _page_address(listen: str | None, with_tls: bool) -> str:
    """Return the URL of our pages, as somebody on this host asks them; empty where we are not on TCP."""
    if not listen:
        return ""
    host, _, port = listen.rpartition("://")[2].rpartition(":")
    if host in ("", "*", "0.0.0.0", "[::]"):
        host = socket.gethostname() if with_tls else "127.0.0.1"
    return f"http{'s' * with_tls}://{host}:{port}"


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _is_unix(listener: socket.socket) -> bool:
    return listener.family == socket.AF_UNIX


@contextlib.contextmanager
def _announced(listen: str | None, with_tls: bool) -> Iterator[None]:
    """While we serve, our TCP address is in a file, locked by us, where this user's recorders find it; under the name
    that we were given, for which the certificate is."""
    if not listen:
        yield
        return
    folder = user_folder(BASES[0], os.getuid())
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, f"server-{os.getpid()}.txt")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        print("https://" * with_tls + listen.rpartition("://")[2], file=file, flush=True)
        try:
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
