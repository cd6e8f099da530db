"""Samples the stacks of a process from outside, with py-spy, which draws the flame graph as well.

The process is neither stopped nor written to, and needs no agent. It costs the CPU time that py-spy takes beside it
(docs/overhead.md), and nothing of its GIL. Read while the process runs on, a stack may now and then be of two instants.
"""

from __future__ import annotations

import os
import re
import subprocess

from probe_agent.errors import BadRequest, NoAnswer

from .py_spy import complaint, installed

__all__ = ["Sampler"]

MAX_SECONDS, MAX_RATE = 3600, 1000
#: It starts, and afterwards draws, within this.
GRACE_S = 30.0
_DONE = re.compile(rb"Samples: (\d+) Errors: (\d+)")
_BEHIND = re.compile(rb"([\d.]+)s behind in sampling")


class Sampler:
    """One run of py-spy; `cancel` may be called from another thread."""

    def __init__(self, pid: int, seconds: int, rate: int, *, idle: bool, format_: str) -> None:
        """`format_` is one of py-spy's. Raises BadRequest or NoAnswer."""
        if not (1 <= seconds <= MAX_SECONDS and 1 <= rate <= MAX_RATE):
            raise BadRequest(
                f"{seconds} s at {rate} samples a second cannot be taken",
                f"1 to {MAX_SECONDS} seconds, 1 to {MAX_RATE} samples a second",
            )
        self._pid = pid
        self._seconds = seconds
        self._cancelled = False
        self._command = [
            installed(pid), "record", "--nonblocking", "--threads", "--full-filenames", "--pid", str(pid),
            "--duration", str(seconds), "--rate", str(rate), "--format", format_,
        ] + ["--idle"] * idle  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> tuple[bytes, str]:
        """What it wrote, and a remark about how many samples that is. Raises NoAnswer."""
        # It speaks on stdout and writes to a file; this one is in memory, and goes when we close it.
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
                    said = b"it was not done in time"
            data = file.read()
        done = _DONE.search(said)
        if process.returncode or not done:
            raise NoAnswer(
                f"the stacks of pid {self._pid} could not be sampled: py-spy says: {complaint(said)}",
                f"does it run, and may we read it? see: probe doctor {self._pid}",
            )
        note = f"{int(done[1]):,} samples in {self._seconds} s"
        if int(done[2]):
            note += f"; {int(done[2]):,} more are lost: stacks that changed while they were read"
        behind = [float(found) for found in _BEHIND.findall(said)]
        if behind:
            note += f"; up to {max(behind):g} s late: take fewer a second"
        return data, note

    def cancel(self) -> None:
        """End it; the process that is sampled does not notice."""
        self._cancelled = True
        if self._process is not None:
            self._process.kill()
