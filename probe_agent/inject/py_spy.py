"""Python stacks read by py-spy, a program of its own: of one moment, or sampled for some seconds.

Works without the agent, and while a C call holds the GIL. The process is neither stopped nor written to; a read takes
30 to 130 ms of a CPU beside it, sampling takes what docs/overhead.md says. The process runs on meanwhile, so two frames
may be of two moments.
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

from probe_agent.errors import BadRequest, NoAnswer
from probe_agent.recorder.guest.redaction import redacted_value
from probe_agent.wire import Frame, ThreadStack

from .threads.tracee import Tracee

__all__ = ["Sampler", "gil_holder", "holder_text", "read_stacks"]

#: A read takes a tenth of this on an idle machine. The holder of the GIL is not worth a long wait.
READ_S, HOLDER_S = 3.0, 1.0
#: If what it reads changes meanwhile, it fails or misses a stack's outer part; a second read mostly succeeds.
TRIES = 5
#: The outermost function of a main thread, unless Python is a part of another program.
_BEGINNINGS = ("<module>", "_run_module_as_main")
#: The outermost frame of the recorder's threads, whether it was carried in or imported; the job's threads have others.
_OUR_BEGINNING = re.compile(
    r"(<probe>/\S*\.|/probe_agent/recorder/(?:\w+/)*)(boot(\.py)?:start|own_threads(\.py)?:_run)"
)
#: Of a frame, and of a variable's text.
MAX_VARIABLES, MAX_CHARS = 40, 120
_OF_CODE = re.compile(r"<(type|function|module|builtin_function_or_method) ")
MAX_SECONDS, MAX_RATE = 3600, 1000
#: For it to start, and to draw the graph.
GRACE_S = 30.0
_DONE = re.compile(rb"Samples: (\d+) Errors: (\d+)")
_BEHIND = re.compile(rb"([\d.]+)s behind in sampling")


def read_stacks(pid: int, *, timeout_s: float = READ_S, with_locals: bool = False) -> tuple[ThreadStack, ...]:
    """Return the stacks of all threads of process `pid`, the main thread first. Raises NoAnswer."""
    reader = _installed(pid)
    deadline = monotonic() + timeout_s
    said = ""
    torn: tuple[ThreadStack, ...] = ()
    for _ in range(TRIES):
        try:
            done = subprocess.run(
                [reader, "dump", "--nonblocking", "--json", "--pid", str(pid), *["--locals"] * with_locals],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=max(0.01, deadline - monotonic()),
            )
            if done.returncode == 0:
                threads = _threads(pid, json.loads(done.stdout))
                if _is_whole(threads):
                    return threads
                torn = threads
            else:
                said = _complaint(done.stderr)
        except subprocess.TimeoutExpired:
            said = said or f"not done within {timeout_s:g} s"
            break
        except (OSError, ValueError, KeyError, TypeError) as error:
            said = f"{type(error).__name__}: {error}"
    if torn:
        return torn
    raise NoAnswer(
        f"the stacks of pid {pid} cannot be read from outside: py-spy says: {said}",
        f"see if it is Python and may be read: probe doctor {pid}",
    )


def gil_holder(pid: int) -> ThreadStack | None:
    """Return the thread of process `pid` that holds the GIL now; None if it cannot be seen."""
    try:
        return next((thread for thread in read_stacks(pid, timeout_s=HOLDER_S) if thread.holds_gil), None)
    except NoAnswer:
        return None  # whoever asks for the stacks is holder_text why they cannot be read


def holder_text(holder: ThreadStack) -> str:
    """Return in words which thread holds the GIL, and where it is."""
    name = f"thread {holder.thread}" if holder.thread else "the main thread" if holder.is_main else "a thread"
    number = f" (tid {holder.tid})" if holder.tid is not None else ""
    where = next((f" in {frame.func}, {frame.file}:{frame.lineno}" for frame in holder.frames), "")
    return f"{name}{number} holds the GIL{where}"


class Sampler:
    """One run of py-spy that samples; `cancel` may be called from another thread."""

    def __init__(self, pid: int, seconds: int, rate: int, *, idle: bool, format_: str) -> None:
        """`format_` is one of py-spy's. Raises BadRequest or NoAnswer."""
        if not (1 <= seconds <= MAX_SECONDS and 1 <= rate <= MAX_RATE):
            raise BadRequest(
                f"cannot sample {seconds} s at {rate} samples a second",
                f"use 1 to {MAX_SECONDS} seconds, 1 to {MAX_RATE} samples a second",
            )
        self._pid = pid
        self._seconds = seconds
        self._cancelled = False
        self._command = [
            _installed(pid), "record", "--nonblocking", "--threads", "--full-filenames", "--pid", str(pid),
            "--duration", str(seconds), "--rate", str(rate), "--format", format_,
        ] + ["--idle"] * idle  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> tuple[bytes, str]:
        """Return its output, and a note on the number of samples. Raises NoAnswer."""
        # It writes to a file, which is in memory and gone once closed; its messages come on stdout.
        with os.fdopen(os.memfd_create("profile"), "rb") as file:
            process = subprocess.Popen(
                [*self._command, "--output", f"/dev/fd/{file.fileno()}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(file.fileno(),),
            )
            with process:
                self._process = process
                if self._cancelled:
                    process.kill()
                try:
                    said, _ = process.communicate(timeout=self._seconds + GRACE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    said = b"not done in time"
            data = file.read()
        done = _DONE.search(said)
        if process.returncode or not done:
            raise NoAnswer(
                f"the stacks of pid {self._pid} could not be sampled: py-spy says: {_complaint(said)}",
                f"see if it runs and may be read: probe doctor {self._pid}",
            )
        note = f"{int(done[1]):,} samples in {self._seconds} s"
        if int(done[2]):
            note += f"; {int(done[2]):,} more were lost: stacks that changed while they were read"
        behind = [float(found) for found in _BEHIND.findall(said)]
        if behind:
            note += f"; up to {max(behind):g} s late: lower the rate"
        return data, note

    def cancel(self) -> None:
        """End it; the sampled process does not notice."""
        self._cancelled = True
        if self._process is not None:
            self._process.kill()


def _installed(pid: int) -> str:
    """Return the path of py-spy. Raises NoAnswer, about `pid`, if it is not installed."""
    reader = _reader()
    if reader is None:
        raise NoAnswer(
            f"the stacks of pid {pid} cannot be read from outside: py-spy is not installed with Probe",
            f"install it: {sys.executable} -m pip install py-spy",
        )
    return reader


def _reader() -> str | None:
    """Return where pip has installed it."""
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if os.access(folder / "py-spy", os.X_OK):
            return str(folder / "py-spy")
    return shutil.which("py-spy")


def _is_whole(threads: tuple[ThreadStack, ...]) -> bool:
    """Return whether the stack of the main thread reaches down to its beginning."""
    return all(thread.frames and thread.frames[-1].func in _BEGINNINGS for thread in threads if thread.is_main)


def _complaint(stderr: bytes) -> str:
    """Return the error in what the program wrote."""
    lines = stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
    return next((line for line in lines if line.startswith("Error: ")), lines[0]).removeprefix("Error: ")


def _locals_of(frame: dict[str, Any]) -> dict[str, str] | None:
    """Return the variables of a frame as py-spy writes them, without secrets; None if they were not asked for."""
    if frame["locals"] is None:
        return None
    return {
        str(one["name"]): _without_secrets(str(one["name"]), str(one["repr"]))
        for one in frame["locals"][:MAX_VARIABLES]
        if one["repr"] is not None and not _OF_CODE.match(one["repr"])
    }


def _without_secrets(name: str, text: str) -> str:
    if text[:1] in "[({" and '"' in text:
        return f"{text[0]}…"  # a command line, perhaps, whose secrets are not at their names
    cut = text.removesuffix('..."')
    shown = redacted_value(name, text if cut == text else cut.partition("://")[0].removeprefix('"') + "…")
    return shown if len(shown) <= MAX_CHARS else shown[: MAX_CHARS - 1] + "…"


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
            Frame(
                str(frame["name"]), str(frame["filename"]), int(frame["line"]), depth, "python", None, _locals_of(frame)
            )
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
