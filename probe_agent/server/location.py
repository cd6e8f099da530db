"""The place of this user's host server: its unix socket, the record beside it, and the lock of whoever starts one.

    /dev/shm/probe-<uid>/host.sock    where it listens: mode 0600, in a folder of mode 0700
    /dev/shm/probe-<uid>/host.json    its process, its build, and how long it lingers
    /dev/shm/probe-<uid>/host.log     what it printed
    /dev/shm/probe-<uid>/host.lock    held by a command while it starts one

Processes of another PID namespace that share this folder (containers with the host's IPC) have a server of their own:
there a PID means another process. Standard library only; a look costs 0.1 ms and each command has one.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from time import monotonic, sleep

import probe_agent
from probe_agent.errors import Forbidden, NoAnswer
from probe_agent.recorder.ring.folder import BASES, user_folder

__all__ = ["Record", "Running", "build", "find", "host_socket", "locked", "release", "usable_folder", "write_record"]

#: The PID namespace of the host itself has this inode on every Linux (PROC_PID_INIT_INO).
_HOST_PID_NAMESPACE = 0xEFFFFFFC
_PEER = struct.Struct("3i")
#: A server that accepts no connection for so long is stopped or swamped.
_CONNECT_S = 2.0
#: A server writes its record right after it has bound its socket.
_RECORD_S = 1.0
#: How long another command may take to start a server.
_LOCK_S = 30.0


@dataclass(frozen=True)
class Record:
    """What a host server says of itself in the file beside its socket."""

    pid: int = 0
    version: str = ""
    build: str = ""
    started: float = 0.0
    #: It ends after so many idle seconds; None for a server that somebody runs.
    linger_s: float | None = None
    listen: str = ""


@dataclass(frozen=True)
class Running:
    """A host server that accepts connections."""

    path: str
    pid: int
    record: Record

    @property
    def is_lingering(self) -> bool:
        """Whether a command has started it, so that another server may take its place."""
        return self.record.linger_s is not None

    @property
    def fits(self) -> bool:
        """Whether this build may use it: the same build, or one that somebody runs on purpose."""
        return not self.is_lingering or self.record.build == build()


def _folders() -> tuple[str, ...]:
    named = os.environ.get("PROBE_RUNTIME_DIR")
    return (os.path.abspath(named),) if named else tuple(user_folder(base, os.getuid()) for base in BASES)


def host_socket(folder: str) -> str:
    """Return where a host server of this PID namespace listens."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return os.path.join(folder, "host.sock" if namespace == _HOST_PID_NAMESPACE else f"host-{namespace}.sock")


def find() -> Running | None:
    """Return the host server of this user, if one runs. Raises Forbidden where somebody else listens in its place."""
    for folder in _folders():
        path = host_socket(folder)
        pid = _listener(path)
        if pid is not None:
            return Running(path, pid, _record_of(path, pid))
    return None


def _listener(path: str) -> int | None:
    """Return the process that listens at `path`, as the kernel tells it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(_CONNECT_S)
        try:
            caller.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return None
        except PermissionError:
            raise Forbidden(
                f"{path} belongs to somebody else", "set PROBE_RUNTIME_DIR to a folder of your own"
            ) from None
        except OSError as failure:
            raise NoAnswer(
                f"the host server at {path} accepts no connection: {failure}", "end it with: probe stop"
            ) from None
        pid, uid, _ = _PEER.unpack(caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if uid != os.geteuid():
        raise Forbidden(
            f"uid {uid} listens at {path}: nothing is sent there", "set PROBE_RUNTIME_DIR to a folder of your own"
        )
    return int(pid)


def _record_of(path: str, pid: int) -> Record:
    """Return what the server with this `pid` has written; an empty record where it has written none in time."""
    ends = monotonic() + _RECORD_S
    while monotonic() < ends:
        with suppress(OSError, ValueError, TypeError), open(_beside(path, "json")) as file:
            record = Record(**json.load(file))
            if record.pid == pid:
                return record
        sleep(0.01)
    return Record(pid)


def write_record(path: str, record: Record) -> None:
    """Write the record of a server beside its socket."""
    part = _beside(path, f"{record.pid}.new")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump(asdict(record), file)
    os.rename(part, _beside(path, "json"))


def release(path: str) -> None:
    """Give the place at `path` to another server. The one that has it ends once its last client has gone."""
    with suppress(FileNotFoundError):
        os.unlink(path)


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Keep every other process from starting a server in `folder`. Raises NoAnswer when one takes too long to."""
    path = _beside(host_socket(folder), "lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        ends = monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic() > ends:
                    raise NoAnswer(
                        f"another process has been starting a host server for {_LOCK_S:.0f} s ({path})", "try again"
                    ) from None
                sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def usable_folder() -> str:
    """Return the folder for this user's host server, made where there is none. Raises NoAnswer."""
    refused = []
    for folder in _folders():
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            found = os.lstat(folder)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                mode = found.st_mode & 0o777
                refused.append(f"{folder} is not private (owner {found.st_uid}, mode {mode:o}): chmod 700 {folder}")
                continue
            os.close(os.open(_beside(host_socket(folder), "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        except OSError as failure:
            refused.append(f"{folder}: {failure.strerror}")
            continue
        return folder
    raise NoAnswer(
        "no folder for the host server's socket: " + "; ".join(refused),
        "make room there, or set PROBE_RUNTIME_DIR to a folder of your own",
    )


@cache
def build() -> str:
    """Return what tells this installation from others: version, folder, newest source file. Costs 2 ms, once."""
    root = os.path.dirname(os.path.abspath(probe_agent.__file__))
    newest = 0
    for folder, _, _ in os.walk(root):
        with os.scandir(folder) as entries:
            newest = max([newest, *(entry.stat().st_mtime_ns for entry in entries if entry.name.endswith(".py"))])
    return f"{probe_agent.__version__} {root} {newest}"


def _beside(path: str, kind: str) -> str:
    return path.removesuffix("sock") + kind
