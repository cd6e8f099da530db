"""Files of another user, opened without following links that the user may have put there.

A target's user may put a link where we expect a folder: root would then write wherever it leads, and out of a
container. So each part of a path is opened by itself, no link is followed, and what root writes or reads for a user
it does with that user's rights.

Runs beside the target, on whatever thread asks: a few µs for each part of a path.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["as_user", "folder_opened", "opened", "opened_inside", "socket_address"]

#: The root of a process is the one link that is followed: the kernel made it.
_PATH = re.compile(r"(/proc/\d+/root)?/?(.*)", re.DOTALL)
_WAY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: The same number on all processors that came after 2011; since Linux 5.6.
_OPENAT2 = 437
#: The C library's setgroups() is for the whole process, the kernel's for one thread.
_SETGROUPS = {"x86_64": 116, "aarch64": 159}.get(platform.machine())
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@contextmanager
def folder_opened(path: str) -> Iterator[int]:
    """Open the folder, for `dir_fd` and listing. Raises NotADirectoryError if a link is in the path."""
    match = _PATH.fullmatch(path)
    assert match is not None
    at = os.open(match[1] or "/", _WAY)
    try:
        for part in filter(None, match[2].split("/")):
            inner = os.open(part, _WAY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = inner
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def opened(path: str) -> Iterator[int]:
    """Open the file for reading. It may be anything but a link, so check what it is."""
    folder_path, _, name = path.rpartition("/")
    with folder_opened(folder_path) as folder:
        descriptor = os.open(name, _FILE, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_inside(root: str, path: str) -> Iterator[int]:
    """Open a file whose path may hold links, which are followed as the process with this `root` would follow them.

    On kernels before 5.6, no link is followed.
    """
    at = os.open(root, _WAY)
    try:
        how = _OpenHow(os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
        number, size = ctypes.c_long(_OPENAT2), ctypes.c_size_t(ctypes.sizeof(how))
        descriptor = int(_libc.syscall(number, at, os.fsencode(path), ctypes.byref(how), size))
        problem = ctypes.get_errno() if descriptor < 0 else 0
    finally:
        os.close(at)
    if problem in (errno.ENOSYS, errno.EPERM):  # the second is what a container's seccomp filter says
        with opened(os.path.join(root, path.lstrip("/"))) as descriptor:
            yield descriptor
        return
    if problem:
        raise OSError(problem, os.strerror(problem), path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def socket_address(path: str) -> Iterator[str]:
    """Return an address of the socket at `path`: of the socket itself, even if the path is replaced."""
    folder_path, _, name = path.rpartition("/")
    with folder_opened(folder_path) as folder:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise ConnectionRefusedError(errno.ECONNREFUSED, "not a socket", path)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextmanager
def as_user(uid: int, gid: int, groups: Sequence[int] = ()) -> Iterator[None]:
    """Use the rights of a user for this thread's files inside the block: what root creates belongs to the user.

    Raises PermissionError if we may not take these rights.
    """
    own_uid, own_gid = os.geteuid(), os.getegid()
    if (uid, gid) == (own_uid, own_gid):
        yield
        return
    own_groups = os.getgroups()
    try:
        _set_groups(groups)  # root's own would open what is root's group's
        _libc.setfsgid(ctypes.c_uint(gid))
        _libc.setfsuid(ctypes.c_uint(uid))
        # Neither call says whether it worked; asked for nobody, each says who we are.
        if (_libc.setfsuid(ctypes.c_uint(-1)), _libc.setfsgid(ctypes.c_uint(-1))) != (uid, gid):
            raise PermissionError(errno.EPERM, f"creating files for uid {uid} needs CAP_SETUID")
        yield
    finally:
        _libc.setfsuid(ctypes.c_uint(own_uid))
        _libc.setfsgid(ctypes.c_uint(own_gid))
        _set_groups(own_groups)


def _set_groups(groups: Sequence[int]) -> None:
    """Set the supplementary groups of this thread."""
    if sorted(groups) == sorted(os.getgroups()):
        return
    array = (ctypes.c_uint * len(groups))(*groups)
    if _SETGROUPS is None or _libc.syscall(ctypes.c_long(_SETGROUPS), ctypes.c_long(len(groups)), array) < 0:
        raise PermissionError(errno.EPERM, "taking the groups of that user needs CAP_SETGID")
