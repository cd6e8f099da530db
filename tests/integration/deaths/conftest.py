"""Programs that die in known ways, and what they have left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands import Probe, environment, probe_in
from support.waiting import until

from probe_agent.targets import Ring
from probe_agent.targets.ended import End, end_of

FOLDER = Path(f"/dev/shm/probe-{os.getuid()}")
#: Begins a program: says that it is ready, and goes on when told to.
READY = """
import ctypes, os, signal, sys, threading, time
print("ready", flush=True)
sys.stdin.readline()
"""


class Dying:
    """A program with a recorder from its start that is about to die."""

    def __init__(self, code: str, folder: Path, *arguments: str, before: tuple[str, ...] = (), **environ: str) -> None:
        folder.mkdir(exist_ok=True)
        script = folder / "job.py"
        script.write_text(READY + code)
        self.process = subprocess.Popen(
            [*before, sys.executable, *arguments, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(**environ),
            cwd=folder,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n", self.process.stderr and self.process.stderr.read()
        self.pid = self.process.pid

    @property
    def files(self) -> Path:
        return next(FOLDER.glob(f"{self.pid}-*"))

    def wait_for_recorder(self) -> None:
        """Wait until all of the recorder that a death needs is there."""
        until(lambda: any(FOLDER.glob(f"{self.pid}-*/target.json")) and (self.files / "exit_code").exists())
        until(lambda: caught(self.pid))

    def die(self) -> tuple[int, bytes, bytes]:
        """Let it go on; return its exit status and output."""
        out, err = self.process.communicate(b"die\n", timeout=60)
        return self.process.returncode, out, err

    @property
    def end(self) -> End:
        found = end_of(str(self.files), pid=self.pid)
        assert found is not None
        return found

    @property
    def exceptions(self) -> list[dict[str, Any]]:
        return rows(self.files)


def caught(pid: int) -> int:
    """Return the mask of the fatal signals that a process handles."""
    masks = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigCgt:" in line]
    return int(masks[0], 16) & sum(1 << number - 1 for number in (4, 6, 7, 8, 11))


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of `python.exceptions` in a target's folder."""
    ring = Ring(str(folder / "python.exceptions.ring"))
    return [row for number in range(ring.head) if (row := ring.row_number(number))]


def twins(code: str, folder: Path, **how: Any) -> tuple[Dying, tuple[int, bytes, bytes], tuple[int, bytes, bytes]]:
    """Run a program to its death with and without a recorder; return the first, and exit status and output of both."""
    probed, alone = Dying(code, folder, PROBE="1", **how), Dying(code, folder, **how)
    probed.wait_for_recorder()
    return probed, probed.die(), alone.die()


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    return probe_in(tmp_path / "state")
