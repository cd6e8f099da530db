"""The mark of how a target ended, in its folder: written by itself on the way out, or by another rank that saw it die.

Runs on threads of ours; one small file, once in the life of a process. Whoever comes first writes it: what the process
says of itself at its exit is not replaced. A process that is killed says nothing.
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
    """Say how the target with `folder` ended, `at` seconds since 1970, unless that is said already."""
    with suppress(FileExistsError, FileNotFoundError):
        descriptor = os.open(os.path.join(folder, END), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, json.dumps({"at": at, "how": how, **more}).encode())
        finally:
            os.close(descriptor)


def what_was_raised() -> str:
    """The exception that ended the script, as the interpreter has just printed it; empty where there was none."""
    error = getattr(sys, "last_value", None)
    if error is None:
        return ""
    try:
        text = str(error).strip().partition("\n")[0]
    except Exception:  # the job's own class: its text is what it likes
        text = ""
    return f"{type(error).__name__}: {text}"[:_LONGEST].rstrip(": ")


def exit_code_of(pid: int) -> int | None:
    """What a process that has just died will tell its parent: minus the signal that killed it, or its exit code. None
    once its parent has been told, or where we may not know."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] != "Z":
        return None
    status = int(fields[49])
    return -(status & 0x7F) or status >> 8
