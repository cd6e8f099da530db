"""Records of how a target ended, in its folder: its own at exit, and that of whoever saw it die.

Runs on a thread of the recorder, or of the host server: one small file per process. The first of several witnesses
wins; a killed process writes nothing itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import sys
from contextlib import suppress
from time import sleep

from ..ring.folder import END, GONE

__all__ = ["exit_code_of", "mark_end", "mark_gone", "what_was_raised"]

_LONGEST = 300
#: The kernel's PIDFD_GET_INFO, with room for the fields of Linux 6.15, and PIDFD_INFO_EXIT.
_INFO_BYTES = 64
_GET_INFO = 3 << 30 | _INFO_BYTES << 16 | 0xFF << 8 | 11
_WANTS_EXIT = 1 << 3
_EXIT_CODE_AT = 60
_TRIES = 5


def mark_end(folder: str, at: float, how: str, error: str) -> None:
    """Record that the target with `folder`, the calling process, ended `at` seconds since 1970: "raised" or "exit"."""
    _write(os.path.join(folder, END), {"at": at, "how": how, "error": error})


def mark_gone(folder: str, at: float, code: int | None, seen_by: str) -> None:
    """Record that the target with `folder` was seen to be dead, and its exit code if that was to be had."""
    _write(os.path.join(folder, GONE), {"at": at, "code": code, "seen_by": seen_by})


def _write(path: str, content: dict[str, object]) -> None:
    """Write a file that does not exist yet."""
    with suppress(FileExistsError, FileNotFoundError):  # another was faster, or the folder is gone
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, json.dumps(content).encode())
        finally:
            os.close(descriptor)


def what_was_raised() -> str:
    """Return the exception that ended the script, as the interpreter has just printed it; empty if there was none."""
    error = getattr(sys, "last_value", None)
    if error is None:
        return ""
    try:
        text = str(error).strip().partition("\n")[0]
    except Exception:  # the job's own class may raise here
        text = ""
    return f"{type(error).__name__}: {text}"[:_LONGEST].rstrip(": ")


def exit_code_of(pid: int, descriptor: int | None = None) -> int | None:
    """Return the exit code of a dead process: minus the signal that killed it, or its exit code.

    It is known until the parent has reaped the process, with permission to read it. From then on Linux 6.15 and later
    tell it through the pidfd `descriptor`.
    """
    for _ in range(_TRIES):
        status = _status_of_zombie(pid)
        if status is None and descriptor is not None:
            status = _status_by_pidfd(descriptor)
        if status is not None:
            return -(status & 0x7F) or status >> 8
        if descriptor is None:
            return None
        sleep(0.001)  # it is being reaped just now
    return None


def _status_by_pidfd(descriptor: int) -> int | None:
    info = bytearray(_INFO_BYTES)
    struct.pack_into("Q", info, 0, _WANTS_EXIT)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:
        return None  # an older kernel
    (mask,) = struct.unpack_from("Q", info)
    status: int = struct.unpack_from("i", info, _EXIT_CODE_AT)[0]
    return status if mask & _WANTS_EXIT else None


def _status_of_zombie(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[49]) if fields[0] == "Z" else None
