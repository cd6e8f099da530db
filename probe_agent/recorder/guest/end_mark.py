"""Record of how a target ended, in its folder: written by the target at exit, or by another rank that saw it die.

Runs on a thread of the recorder: one small file per process. The first writer wins, so that the target's own record is
not replaced; a killed process writes none.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

from ..ring.folder import END

__all__ = ["exit_code_of", "mark_end", "what_was_raised"]

_LONGEST = 300


def mark_end(folder: str, at: float, how: str, **more: object) -> None:
    """Record how the target with `folder` ended, `at` seconds since 1970, unless that is recorded already."""
    with suppress(FileExistsError, FileNotFoundError):
        descriptor = os.open(os.path.join(folder, END), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, json.dumps({"at": at, "how": how, **more}).encode())
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


def exit_code_of(pid: int) -> int | None:
    """Return the exit code of a zombie: minus the signal that killed it, or its exit code. None once its parent has
    reaped it, or without permission."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] != "Z":
        return None
    status = int(fields[49])
    return -(status & 0x7F) or status >> 8
