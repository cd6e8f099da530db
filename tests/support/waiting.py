"""Waiting for a condition, with a deadline: what a test does instead of sleeping and hoping. And stopping a process,
which has not stopped yet when the signal is sent."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TypeVar

__all__ = ["stop", "until"]

T = TypeVar("T")
PAUSE_S = 0.01


def until(
    condition: Callable[[], T],
    timeout_s: float = 30.0,
    says: Callable[[], object] = str,
    process: subprocess.Popen[bytes] | subprocess.Popen[str] | None = None,
) -> T:
    """Return what `condition` returns once that is true. Fail after `timeout_s`, or when `process` has ended before,
    with what `says` tells then."""
    deadline = monotonic() + timeout_s
    while not (found := condition()):
        assert process is None or process.poll() is None, f"it has ended with {process.returncode}: {says()}"
        assert monotonic() < deadline, f"not within {timeout_s:g} s: {says()}"
        sleep(PAUSE_S)
    return found


def stop(pid: int) -> None:
    """Stop a process, and wait until all its threads have: on another processor one may still answer for a while."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: set(_states(pid)) == {"T"})


def _states(pid: int) -> Iterator[str]:
    """Yield the state of each thread; those that end meanwhile are left out."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            yield (task / "stat").read_text().rpartition(") ")[2][0]
