"""Folder of a target's files, readable by its user alone.

    /dev/shm/probe-<uid>/<pid>-<start time>/
        target.json     identity (written last, so a folder with it is complete)
        control.sock    control socket of the recorder
        <table>.ring    recorded rows
        awaited.json    why tables have no rows
        stall.json      snapshot of the newest stall
        start.json      what happened before the first step
        stacks.txt      written by faulthandler while the GIL is held
        end.json        how it ended, written by itself
        gone.json       that it has died, written by whoever saw it: another rank, the host server
        exit_code       the exit code, in one of eight words
        fatal.txt       the stack of a fatal signal, or why there is none
        oom.json        how often the OOM killer had struck in its cgroup

A detach that keeps the rings moves them to <pid>-<start time>.<when>.

The start time (clock ticks since boot, field 22 of /proc/PID/stat) distinguishes a reused PID. The target holds a lock
on its folder for as long as it lives, which also other PID namespaces can see. What dead targets left can be read for a
time (`prune`). In the target its functions run on the recorder's thread, at the start and the end.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress

__all__ = [
    "AWAITED",
    "BASES",
    "CONTROL",
    "END",
    "EXIT_CODE",
    "FATAL",
    "GONE",
    "NO_EXIT_CODE",
    "OOM",
    "STACKS",
    "STALL",
    "START",
    "TARGET",
    "check_owner",
    "folder_name",
    "hold",
    "is_held",
    "keep",
    "make",
    "make_own",
    "prune",
    "remove",
    "ring_name",
    "start_ticks",
    "user_folder",
]

#: Tried in this order: a ring on a disk would cost the target writes.
BASES = ("/dev/shm", "/tmp")
TARGET = "target.json"
CONTROL = "control.sock"
STACKS = "stacks.txt"
END = "end.json"
GONE = "gone.json"
EXIT_CODE = "exit_code"
#: Its content as long as exit() has not been called.
NO_EXIT_CODE = b"\xff" * 64
FATAL = "fatal.txt"
OOM = "oom.json"
AWAITED = "awaited.json"
STALL = "stall.json"
START = "start.json"
#: Dead targets whose files are kept: every command reads a file of each.
MAX_DEAD = 256
#: An incomplete folder that is younger may belong to a recorder that is starting.
STARTING_S = 60.0


def user_folder(base: str, uid: int) -> str:
    """Return the folder of all targets of a user."""
    return os.path.join(base, f"probe-{uid}")


def folder_name(pid: int, ticks: int) -> str:
    """Return the name of a target's folder; `pid` is the target's own view of its PID."""
    return f"{pid}-{ticks}"


def ring_name(table: str) -> str:
    """Return the file name of a table: `python.steps.ring` for `python.steps`."""
    return table + ".ring"


def start_ticks(stat_text: str) -> int:
    """Return the start time from the text of /proc/PID/stat, whose command may contain spaces and brackets."""
    return int(stat_text.rpartition(")")[2].split()[19])


def make(pid: int, ticks: int) -> str:
    """Make and return the calling process's own folder, mode 0700. Raises OSError if no base can be used."""
    uid = os.getuid()
    refused = []
    for base in BASES:
        parent = user_folder(base, uid)
        try:
            try:
                os.mkdir(parent, 0o700)
            except FileExistsError:
                check_owner(parent, uid)
            path = os.path.join(parent, folder_name(pid, ticks))
            os.mkdir(path, 0o700)
            return path
        except OSError as error:
            refused.append(f"{parent}: {error.strerror or error}")
    raise OSError("no folder for the recorder's files: " + "; ".join(refused))


def make_own() -> str:
    """Make the folder of a process that starts the recorder itself, without its files from before an `exec`."""
    with open("/proc/self/stat") as file:
        ticks = start_ticks(file.read())
    for base in BASES:
        left = os.path.join(user_folder(base, os.getuid()), folder_name(os.getpid(), ticks))
        if os.path.isdir(left) and os.stat(left).st_uid == os.getuid() and not is_held(left):
            remove(left)
    return make(os.getpid(), ticks)


def check_owner(path: str, uid: int) -> None:
    """Raise PermissionError unless `path` is a real folder that only `uid` can write: /tmp is open to all users."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != uid or status.st_mode & 0o022:
        raise PermissionError(1, f"{path} belongs to another user or is writable by others")


def hold(path: str) -> int:
    """Mark the owner of the folder as alive until the returned descriptor is closed or the process ends."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def is_held(path: str) -> bool:
    """Return whether the owner of the folder is alive."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def prune(parent: str, keep_s: float, keep_bytes: float) -> None:
    """Remove what targets left that have been dead for longer than `keep_s`, then the oldest of the others until
    `MAX_DEAD` are left, in no more than `keep_bytes` and a quarter of the file system: shared memory is the job's
    memory too.

    A recorder touches its folder for as long as it lives."""
    space = os.statvfs(parent)
    left = min(keep_bytes, space.f_blocks * space.f_frsize / 4)
    for number, (age_s, path) in enumerate(sorted(_dead(parent))):
        left -= _size(path)
        if age_s > keep_s or left < 0 or number >= MAX_DEAD:
            remove(path)


def _dead(parent: str) -> Iterator[tuple[float, str]]:
    """Yield the folders of dead targets, with their age."""
    now = time.time()
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        try:
            age_s = now - os.stat(path).st_mtime
            is_whole = os.path.exists(os.path.join(path, TARGET))
            if os.path.isdir(path) and (is_whole or age_s > STARTING_S) and not is_held(path):
                yield age_s, path
        except FileNotFoundError:
            continue  # its owner has just removed it


def _size(path: str) -> int:
    """Return the bytes that the files of a folder take."""
    total = 0
    with suppress(FileNotFoundError):  # somebody else removes it
        for name in os.listdir(path):
            total += os.stat(os.path.join(path, name)).st_blocks * 512
    return total


def keep(path: str) -> str:
    """Turn a target's folder into that of an ended one, and return its new path: it can be read and does not block a
    later attach to the same process."""
    for name in (CONTROL, STACKS):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(path, name))
    kept = f"{path}.{time.time_ns() // 1_000_000}"
    os.rename(path, kept)
    return kept


def remove(path: str) -> None:
    """Remove a target's folder with its files, even if another process does so too, or an ending thread of the recorder
    has just written a last file there."""
    # Not shutil.rmtree: on CPython 3.9 shutil imports threading, which must not happen on the recorder's thread.
    for is_last in (False, False, True):
        try:
            for name in os.listdir(path):
                os.unlink(os.path.join(path, name))
            os.rmdir(path)
            return
        except FileNotFoundError:
            continue  # another process has removed a file, or the folder
        except OSError as error:
            if is_last or error.errno != errno.ENOTEMPTY:
                raise
