"""Folder of the target, in its mount namespace: the payload lies there, and later the recorder's files.

Runs in the attaching process. What is made there belongs to the target's user, and no part of the path is trusted.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from probe_agent import untrusted_files
from probe_agent.recorder.ring import folder as ring_folder
from probe_agent.recorder.ring.folder import BASES, folder_name, user_folder

from .threads.tracee import Tracee

__all__ = [
    "FREE_MIB",
    "connect",
    "folders",
    "is_held",
    "link_text",
    "make",
    "names",
    "remove",
    "require_own",
    "require_space",
    "unlink",
    "write",
]

#: Enough for rings and sockets.
FREE_MIB = 64


def folders(process: Tracee) -> list[Path]:
    """Return where its folder may be, as it sees it, in the order of preference."""
    return [Path(user_folder(base, process.uid), folder_name(process.inner_pid, process.start_ticks)) for base in BASES]


def names(process: Tracee, folder: Path) -> list[str] | None:
    """Return the names of the files there; None if there is no such folder, or it belongs to another user."""
    try:
        with _opened(process, folder) as opened:
            return os.listdir(opened)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None


def is_held(process: Tracee, folder: Path) -> bool:
    """Return whether a running recorder holds it."""
    try:
        with _opened(process, folder) as opened:
            return ring_folder.is_held(f"/proc/self/fd/{opened}")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False


def link_text(process: Tracee, folder: Path, name: str) -> str | None:
    """Return the text of a link; None if there is none."""
    try:
        with _opened(process, folder) as opened:
            return os.readlink(name, dir_fd=opened)
    except OSError:
        return None


def connect(process: Tracee, path: Path, connection: socket.socket) -> None:
    """Connect to a socket of the process. Raises OSError."""
    with untrusted_files.socket_address(process.from_outside(str(path))) as address:
        connection.connect(address)


def require_space(process: Tracee, base: Path) -> str:
    """Return how much its user can write below `base`, in words. Raises OSError, in words too, if it is too little."""
    with untrusted_files.folder_opened(process.from_outside(str(base))) as opened, _as_its_user(process):
        # access() checks the real user unless told otherwise, and that never changes.
        if not os.access(f"/proc/self/fd/{opened}", os.W_OK | os.X_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, "not writable")
        space = os.fstatvfs(opened)
    free_mib = space.f_bavail * space.f_frsize >> 20
    if free_mib < FREE_MIB:
        raise OSError(errno.ENOSPC, f"{free_mib} MiB free")
    return f"{free_mib} MiB free"


def require_own(process: Tracee, folder: Path) -> None:
    """Raise OSError, in words, if the folder is not its user's own, or FileNotFoundError."""
    try:
        with _opened(process, folder):
            pass
    except NotADirectoryError:
        raise NotADirectoryError(errno.ENOTDIR, "not a folder, or a link that could lead anywhere") from None


def make(process: Tracee, folder: Path) -> None:
    """Make a folder that only the target's user can read, or check that there is one."""
    with (
        untrusted_files.folder_opened(process.from_outside(str(folder.parent))) as parent,
        _as_its_user(process),
        suppress(FileExistsError),
    ):
        os.mkdir(folder.name, 0o700, dir_fd=parent)
    require_own(process, folder)


def write(process: Tracee, file: Path, data: bytes) -> None:
    """Write a whole file at once: the target may read it at any moment."""
    new = file.name + ".new"
    with _opened(process, file.parent) as opened, _as_its_user(process):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(new, flags, 0o600, dir_fd=opened), "wb") as out:
            out.write(data)
        os.rename(new, file.name, src_dir_fd=opened, dst_dir_fd=opened)


def unlink(process: Tracee, file: Path) -> bool:
    """Remove a file. Return False if there is none."""
    try:
        with _opened(process, file.parent) as opened, _as_its_user(process):
            os.unlink(file.name, dir_fd=opened)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def remove(process: Tracee, folder: Path) -> None:
    """Remove the folder with its files, even while its recorder does the same."""
    with suppress(FileNotFoundError, NotADirectoryError):
        with _opened(process, folder) as opened, _as_its_user(process):
            for name in os.listdir(opened):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=opened)
        with untrusted_files.folder_opened(process.from_outside(str(folder.parent))) as parent, _as_its_user(process):
            os.rmdir(folder.name, dir_fd=parent)


@contextmanager
def _opened(process: Tracee, folder: Path) -> Iterator[int]:
    """Open the folder if it is its user's own: in /tmp another user may have made it."""
    with untrusted_files.folder_opened(process.from_outside(str(folder))) as opened:
        status = os.fstat(opened)
        if status.st_uid != process.uid or status.st_mode & 0o022:
            raise PermissionError(errno.EPERM, "belongs to another user, or is writable by others")
        yield opened


def _as_its_user(process: Tracee) -> AbstractContextManager[None]:
    return untrusted_files.as_user(process.uid, process.gid)
