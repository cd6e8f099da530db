"""C and C++ frames between the Python frames of a process, read by pystack in a process of its own.

The target stands still while they are read: ptrace stops every thread of it. docs/backtrace.md says for how long.
Works while a C call holds the GIL, and on a process that is stopped, which stays so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from probe_agent.errors import NoAnswer
from probe_agent.procfs import ENDED, Process
from probe_agent.wire import Frame, ThreadStack

__all__ = ["NativeStacks", "read_native_stacks"]

#: The longest time for which a target may be kept.
LIMIT_S = 2.0
_PROGRAM = Path(__file__).with_name("pystack_program.py")


@dataclass(frozen=True)
class NativeStacks:
    """Threads with their C frames, and for how long the target stood still."""

    threads: tuple[ThreadStack, ...]
    stopped_s: float
    #: Threads whose C stack could not be followed: they have their Python frames.
    num_unmerged: int


def read_native_stacks(pid: int, *, all_threads: bool) -> NativeStacks:
    """Return the stacks of the Python threads of process `pid`, or of every thread. Raises NoAnswer."""
    process = Process(pid)
    try:
        letters = {process.stat_now(tid).letter for tid in process.threads()}
    except ENDED:
        raise NoAnswer(f"pid {pid} has ended: it has no stacks", "list the targets: probe list") from None
    if find_spec("pystack") is None:
        raise NoAnswer(
            "C frames cannot be read: pystack is not installed with Probe",
            f"install it: {sys.executable} -m pip install pystack",
        )
    if "D" in letters:  # the reader would wait with it
        raise NoAnswer(
            f"the C frames of pid {pid} are not read: a thread of it waits in the kernel and cannot be stopped",
            "leave out --native: the kernel function it waits in is shown",
        )
    command = [sys.executable, "-I", str(_PROGRAM), str(pid), "all" if all_threads else "python"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        try:
            output, said = reader.communicate(timeout=LIMIT_S)
            problem = "" if reader.returncode == 0 else _complaint(said, reader.returncode)
        except subprocess.TimeoutExpired:
            reader.kill()
            reader.communicate()
            problem = f"not done within {LIMIT_S:g} s"
    if problem:
        _resume(process, letters)
        raise NoAnswer(
            f"the C frames of pid {pid} cannot be read: pystack says: {problem}",
            f"see if it may be traced: probe doctor {pid}",
        )
    try:
        return _decoded(process, json.loads(output))
    except (ValueError, KeyError, TypeError) as error:
        raise NoAnswer(f"cannot read what pystack has written on pid {pid}: {error!r}", "leave out --native") from error


def _resume(process: Process, letters: set[str]) -> None:
    """Undo a stop that a reader has ordered and did not live to see: nobody else would continue the target."""
    if letters & {"T", "t"}:
        return  # it was stopped before
    try:
        os.kill(process.pid, signal.SIGCONT)  # takes back also a stop that has not arrived yet
    except ProcessLookupError:
        return


def _complaint(stderr: bytes, code: int) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"ended with {code}"


def _decoded(process: Process, said: dict[str, Any]) -> NativeStacks:
    threads = []
    for thread in said["threads"]:
        tid = int(thread["tid"])
        try:
            inner = process.inner(tid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # this thread, or the process, has ended since
        is_main = tid == process.pid
        frames = tuple(
            Frame(
                str(frame["func"]),
                str(frame["file"]),
                int(frame["lineno"]),
                depth,
                "native" if "library" in frame else "python",
                None,
            )
            for depth, frame in enumerate(thread["frames"])
        )
        name = "MainThread" if is_main else str(thread["name"] or "") or None
        threads.append(ThreadStack(name, 0, inner, is_main, False, False, frames, holds_gil=bool(thread["holds_gil"])))
    unmerged = sum(not thread["is_merged"] for thread in said["threads"] if thread["is_python"])
    return NativeStacks(tuple(threads), float(said["stopped_s"]), unmerged)
