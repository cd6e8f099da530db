"""Runs the web app as the host server: its sockets, who may reach them, and the end.

The door to uvicorn. Runs in a process of its own beside the targets, never in one.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import ipaddress
import os
import resource
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from functools import partial
from threading import Thread
from time import monotonic, sleep
from types import FrameType

import uvicorn
from fastapi import FastAPI

from probe_agent.activate.listen import ListenRefused, inherited, listening
from probe_agent.errors import BadRequest
from probe_agent.tokens import server_tokens

from .access.quota import Quota
from .access.roles import Access
from .app import create_app
from .connections import Connection, HostServer, showing
from .location import host_socket, listens

__all__ = ["serve"]

#: A target that still reached us has said who it is by then.
LAST_LOOK_S = 1.0


def serve(
    listen: str | None,
    path: str | None,
    linger_s: float | None = None,
    *,
    insecure: bool = False,
    tls: tuple[str, str | None, str | None] | None = None,
    readers: tuple[int, float],
) -> int:
    """Serve on the unix socket `path` (or the usual one) and, when `listen` is given, on TCP, until told to end.

    With `linger_s`, until there has been no living target for so long. With `insecure`, loopback TCP without a token.
    `tls` names the files of the certificate, of its key, and of who signs the certificates of clients. `readers` is the
    most memory (MB) and time (s) that a query may take with the token for reading.
    """
    gc.set_threshold(700)  # unlike the short commands, this one lives long
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # connections that others keep open take none of ours
    again = dict(os.environ)
    context = showing(*tls) if tls else None
    tokens = server_tokens() if listen and not insecure else None
    sockets = _sockets(listen, path, insecure)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's linear algebra is not used here
    app = create_app(access=Access(tokens, Quota(*readers)))
    paths = {each.getsockname(): os.stat(each.getsockname()).st_ino for each in sockets if _is_unix(each)}
    # What it is reached by is said once it can be: the kernel queues connections from here on.
    if listen:
        known = tokens.source if tokens else "no token is wanted: every user of this host can run code in the targets"
        remark(f"listening on http{'s' if tls else ''}://{listen} ({known})")
    if not tls and not all(_is_unix(each) or _is_loopback(each) for each in sockets):
        remark(
            "warning: without TLS, tokens and answers can be read on their way by others on that network;"
            " give --tls-cert and --tls-key, or listen on 127.0.0.1 and use ssh -L"
        )
    for name in paths:
        remark(f"listening on unix:{name}")
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # or a header would say who asks
        timeout_graceful_shutdown=1,
    )

    def tidy() -> None:
        for name, inode in paths.items():
            if os.path.exists(name) and os.stat(name).st_ino == inode:
                os.unlink(name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_announcement())

    server = HostServer(config, context, tidy)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, partial(_end, server))  # uvicorn ends in good order, then raises it once more for us
    if linger_s is not None:
        Thread(target=_end_when_idle, args=(server, app, linger_s), daemon=True).start()
    try:
        with _announced(listen, bool(tls)):
            server.run(sockets=sockets)
    finally:
        tidy()
    if linger_s is not None:
        sleep(LAST_LOOK_S)
    if linger_s is not None and _num_living(app):  # came while we were closing, and found us still there
        os.execve(sys.executable, sys.orig_argv, again)
    return 0


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
        if path or not sockets or not listens(host_socket()):  # of several servers one has the usual socket
            is_bound = found is not None and not listen
            sockets.append(found if found and is_bound else listening("unix:" + (path or _usual())))
    except ListenRefused as refusal:
        raise BadRequest(refusal.message, refusal.hint) from None
    return sockets


def _end(server: uvicorn.Server, number: int, frame: FrameType | None) -> None:
    # Python ignores what is raised in a callback, which there are during imports: then uvicorn ends once it has begun.
    server.should_exit = True
    raise SystemExit(0)


def _end_when_idle(server: uvicorn.Server, app: FastAPI, linger_s: float) -> None:
    last = monotonic()
    while monotonic() - last < linger_s:
        sleep(max(0.2, linger_s / 20))
        if _num_living(app):
            last = monotonic()
    server.should_exit = True


def _num_living(app: FastAPI) -> int:
    """How many targets of this host live now."""
    return sum(target.is_alive for target in app.state.directory.targets())


def remark(text: str) -> None:
    """Say something that is not data: it goes to stderr."""
    print(text, file=sys.stderr, flush=True)


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
    _usual()
    path = _announcement()
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        print("https://" * with_tls + listen.rpartition("://")[2], file=file, flush=True)
        yield  # the file goes with our sockets


def _announcement() -> str:
    return os.path.join(os.path.dirname(host_socket()), f"server-{os.getpid()}.txt")


def _usual() -> str:
    """Where the host server listens, in a folder that is ours alone."""
    folder = os.path.dirname(host_socket())
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise BadRequest(
            f"{folder} is not a folder of ours alone (owner {found.st_uid}, mode {found.st_mode & 0o777:o})",
            f"remove it, or: chmod 700 {folder}",
        )
    return host_socket()
