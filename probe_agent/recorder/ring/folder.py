"""Where a target keeps its files: one folder a target, readable by its user alone.

    /dev/shm/probe-<uid>/<pid>-<start time>/
        target.json     who it is (written last, so a folder with it is complete)
        control.sock    the recorder listens here
        <table>.ring    recorded rows
        awaited.json    why tables have no rows
        stacks.txt      written by faulthandler when nobody can take the GIL
        end.json        how it ended: its own word, or that of a rank that saw it die

What a detach has kept lies in <pid>-<start time>.<when>.

The start time (clock ticks since boot, field 22 of /proc/PID/stat) keeps a reused PID apart. The target holds a lock
on its folder as long as it lives, so that others can tell, also from another PID namespace; the rings of the dead can
be read until newer ones push them out.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import suppress

__all__ = [
    "AWAITED",
    "BASES",
    "CONTROL",
    "END",
    "STACKS",
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

#: Tried in this order; shared memory first because a ring on a disk costs the target writes.
BASES = ("/dev/shm", "/tmp")
TARGET = "target.json"
CONTROL = "control.sock"
STACKS = "stacks.txt"
END = "end.json"
AWAITED = "awaited.json"
#: Dead targets whose rings are kept for whoever wants to know what happened.
KEEP_DEAD = 4
#: And for how long after they were last seen alive, in seconds: a week.
KEEP_DEAD_S = 7 * 86_400.0
#: A folder younger than this may belong to a recorder that is just starting.
STARTING_S = 60.0


def user_folder(base: str, uid: int) -> str:
    """The folder that holds all targets of a user."""
    return os.path.join(base, f"probe-{uid}")


def folder_name(pid: int, ticks: int) -> str:
    """The name of a target's folder; `pid` is what the target itself sees."""
    return f"{pid}-{ticks}"


def ring_name(table: str) -> str:
    """The file of a table: `python.steps` lies in `python.steps.ring`."""
    return table + ".ring"


def start_ticks(stat_text: str) -> int:
    """The start time out of the text of /proc/PID/stat; the command in it may hold spaces and brackets."""
    return int(stat_text.rpartition(")")[2].split()[19])


def make(pid: int, ticks: int) -> str:
    """Make and return the calling process's own folder, mode 0700. Raises OSError when no base can be used."""
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
    """`make` for a process that starts the recorder itself; what it left before an `exec` is taken away."""
    with open("/proc/self/stat") as file:
        ticks = start_ticks(file.read())
    for base in BASES:
        left = os.path.join(user_folder(base, os.getuid()), folder_name(os.getpid(), ticks))
        if os.path.isdir(left) and os.stat(left).st_uid == os.getuid() and not is_held(left):
            remove(left)
    return make(os.getpid(), ticks)


def check_owner(path: str, uid: int) -> None:
    """Raise PermissionError unless `path` is a real folder that only `uid` can write: /tmp is open to all."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != uid or status.st_mode & 0o022:
        raise PermissionError(1, f"{path} belongs to somebody else, or others can write it")


def hold(path: str) -> int:
    """Say that the owner of the folder is alive, until the returned descriptor is closed or the process ends."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def is_held(path: str) -> bool:
    """Whether the owner of the folder is alive."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def prune(parent: str, keep: int = KEEP_DEAD) -> None:
    """Remove the folders of dead targets but for the `keep` newest, and these when they have been dead for a week:
    shared memory is the job's memory too. A recorder touches its folder for as long as it lives."""
    now = time.time()
    dead = []
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        try:
            age_s = now - os.stat(path).st_mtime
            if os.path.isdir(path) and age_s > STARTING_S and not is_held(path):
                dead.append((age_s, path))
        except FileNotFoundError:
            continue  # its owner has just taken it away
    for number, (age_s, path) in enumerate(sorted(dead)):
        if number >= keep or age_s > KEEP_DEAD_S:
            remove(path)


def keep(path: str) -> str:
    """Leave a target's folder as that of one that has ended, and return its new path: it can be read, and is in the way
    of no later attach to the same process."""
    for name in (CONTROL, STACKS):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(path, name))
    kept = f"{path}.{time.time_ns() // 1_000_000}"
    os.rename(path, kept)
    return kept


def remove(path: str) -> None:
    """Remove a target's folder with its files, whether or not somebody else is doing so too; also when a thread of ours
    that is about to end has just written a last file there."""
    # Not shutil.rmtree: on CPython 3.9 shutil imports threading, which must not happen on the recorder's thread.
    for is_last in (False, False, True):
        try:
            for name in os.listdir(path):
                os.unlink(os.path.join(path, name))
            os.rmdir(path)
            return
        except FileNotFoundError:
            continue  # somebody else was faster with a file, or with all of them
        except OSError as error:
            if is_last or error.errno != errno.ENOTEMPTY:
                raise
