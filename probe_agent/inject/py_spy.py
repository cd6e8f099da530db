"""Python stacks of a process that cannot be asked: without the agent, or while a C call in it holds the GIL.

Read from its memory by py-spy, a program of its own, in 30 to 130 ms; the process is not stopped and not written to.
Runs beside the target, as a subprocess with a deadline. Read while the process runs on, so two frames may be of two
instants.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from time import monotonic
from typing import Any

from probe_agent.errors import NoAnswer
from probe_agent.wire import Frame, ThreadStack

from .threads.tracee import Tracee

__all__ = ["complaint", "gil_holder", "holder_text", "installed", "read_stacks"]

#: It is done in a tenth of that on a machine with something to spare. Who holds the GIL is not worth waiting long for.
READ_S, HOLDER_S = 3.0, 1.0
#: What it reads may change under its hands; then it says so, and a second look is right.
TRIES = 3
#: Where threads of ours begin, whether the recorder was carried in or imported; the job's call other code of ours.
_OUR_BEGINNING = re.compile(r"(<probe>/\S*\.|/probe_agent/recorder/)(boot(\.py)?:start|own_threads(\.py)?:_run)")


def read_stacks(pid: int, *, timeout_s: float = READ_S) -> tuple[ThreadStack, ...]:
    """All threads of process `pid`, the main one first. Raises NoAnswer."""
    reader = installed(pid)
    deadline = monotonic() + timeout_s
    said = ""
    for _ in range(TRIES):
        try:
            done = subprocess.run(
                [reader, "dump", "--nonblocking", "--json", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=max(0.01, deadline - monotonic()),
            )
            if done.returncode == 0:
                return _threads(pid, json.loads(done.stdout))
            said = complaint(done.stderr)
        except subprocess.TimeoutExpired:
            said = said or f"not done within {timeout_s:g} s"
            break
        except (OSError, ValueError, KeyError, TypeError) as error:
            said = f"{type(error).__name__}: {error}"
    raise NoAnswer(
        f"the stacks of pid {pid} cannot be read from outside: py-spy says: {said}",
        f"is it Python, and may we read it? see: probe doctor {pid}",
    )


def gil_holder(pid: int) -> ThreadStack | None:
    """The thread of process `pid` that holds the GIL at this moment, as far as that can be seen."""
    try:
        return next((thread for thread in read_stacks(pid, timeout_s=HOLDER_S) if thread.holds_gil), None)
    except NoAnswer:
        return None  # whoever asks for the stacks is holder_text why they cannot be read


def holder_text(holder: ThreadStack) -> str:
    """Who holds the GIL, and where, in a few words."""
    name = f"thread {holder.thread}" if holder.thread else "the main thread" if holder.is_main else "a thread"
    number = f" (tid {holder.tid})" if holder.tid is not None else ""
    where = next((f" in {frame.func}, {frame.file}:{frame.lineno}" for frame in holder.frames), "")
    return f"{name}{number} holds the GIL{where}"


def installed(pid: int) -> str:
    """The program. Raises NoAnswer, about `pid`, where there is none."""
    reader = _reader()
    if reader is None:
        raise NoAnswer(
            f"the stacks of pid {pid} cannot be read from outside: py-spy is not installed beside Probe",
            f"install it there: {sys.executable} -m pip install py-spy",
        )
    return reader


def _reader() -> str | None:
    """Where pip put it beside us."""
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if os.access(folder / "py-spy", os.X_OK):
            return str(folder / "py-spy")
    return shutil.which("py-spy")


def complaint(stderr: bytes) -> str:
    """What went wrong, of all that the program said."""
    lines = stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
    return next((line for line in lines if line.startswith("Error: ")), lines[0]).removeprefix("Error: ")


def _threads(pid: int, said: list[dict[str, Any]]) -> tuple[ThreadStack, ...]:
    # It lists the newest thread first, and until Python 3.10 does not know the kernel's numbers.
    main_tid = Tracee(pid).inner_pid
    by_number = [thread["thread_id"] for thread in said if thread["os_thread_id"] == main_tid]
    knows_numbers = any(thread["os_thread_id"] is not None for thread in said)
    main_ident = by_number[0] if by_number else said[-1]["thread_id"] if said and not knows_numbers else None
    found = []
    for thread in reversed(said):
        is_main = thread["thread_id"] == main_ident
        frames = tuple(
            Frame(str(frame["name"]), str(frame["filename"]), int(frame["line"]), depth, "python", None)
            for depth, frame in enumerate(thread["frames"])
        )
        is_ours = not is_main and any(_OUR_BEGINNING.search(f"{frame.file}:{frame.func}") for frame in frames)
        found.append(
            ThreadStack(
                thread="probe" if is_ours else thread["thread_name"] or ("MainThread" if is_main else None),
                ident=int(thread["thread_id"]),
                tid=main_tid if is_main else thread["os_thread_id"],
                is_main=is_main,
                is_training=False,
                is_probe=is_ours,
                frames=frames,
                holds_gil=bool(thread["owns_gil"]),
            )
        )
    return tuple(sorted(found, key=lambda thread: (not thread.is_main, not thread.holds_gil, thread.is_probe)))
