"""What /proc tells about a process, without touching it. A few file reads each; runs beside the target."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from time import CLOCK_BOOTTIME, clock_gettime

from probe_agent.recorder.ring.folder import start_ticks

__all__ = ["Process", "all_pids", "all_processes", "read_process"]

_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a disk",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "zombie",
    "X": "gone",
    "I": "idle",
}
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_PYTHON = re.compile(r"(python|pypy)[\d.]*\w*$")


@dataclass(frozen=True)
class Process:
    """One process that exists, or existed a moment ago."""

    pid: int
    state: str
    start_ticks: int
    parent_pid: int = 0

    @property
    def proc(self) -> str:
        return f"/proc/{self.pid}"

    @property
    def is_alive(self) -> bool:
        return self.state not in ("zombie", "gone")

    @property
    def age_s(self) -> float:
        return max(0.0, clock_gettime(CLOCK_BOOTTIME) - self.start_ticks / _TICKS_A_SECOND)

    @property
    def uid(self) -> int:
        """The user it runs as. Raises OSError when it is gone."""
        return os.stat(self.proc).st_uid

    @property
    def rights(self) -> tuple[int, int, list[int]]:
        """The user, the group and the other groups with whose rights it opens files. Raises OSError when it is gone.

        Not the owner of its folder in /proc: that is root, once a process has made itself unreadable.
        """
        user, group = (int(self.status(field).split()[3]) for field in ("Uid", "Gid"))
        return user, group, [int(number) for number in self.status("Groups").split()]

    @property
    def command(self) -> tuple[str, ...]:
        """Its command line. Raises OSError when it is gone."""
        with open(self.proc + "/cmdline", "rb") as file:
            return tuple(part.decode("utf-8", "replace") for part in file.read().split(b"\0")[:-1])

    @property
    def is_python(self) -> bool:
        """Whether its program is a Python interpreter. Raises OSError when it is gone or somebody else's."""
        return _PYTHON.match(os.path.basename(os.readlink(self.proc + "/exe")).removesuffix(" (deleted)")) is not None

    def status(self, field: str) -> str:
        """One field of its status file; empty when the kernel has none. Raises OSError when it is gone."""
        with open(self.proc + "/status") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name == field:
                    return value.strip()
        return ""

    @property
    def inner_pid(self) -> int:
        """Its process id as it sees it itself. Raises OSError when it is gone."""
        return int((self.status("NSpid") or str(self.pid)).split()[-1])

    def catches(self, signal_number: int) -> bool:
        """Whether it has a handler for a signal; without one, most signals would kill it."""
        return bool(int(self.status("SigCgt") or "0", 16) >> (signal_number - 1) & 1)

    @property
    def view(self) -> tuple[str, int, int]:
        """Which file system it sees: two processes with equal views see the same files. Raises OSError."""
        root = os.stat(self.proc + "/root")
        return os.readlink(self.proc + "/ns/mnt"), root.st_dev, root.st_ino


def read_process(pid: int) -> Process | None:
    """The process of that number, or None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    letter, parent_pid = text.rpartition(")")[2].split()[:2]
    return Process(pid, _STATES.get(letter, letter), start_ticks(text), int(parent_pid))


def all_pids() -> list[int]:
    """The number of every process that can be seen."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def all_processes() -> Iterator[Process]:
    """Every process that can be seen."""
    for pid in all_pids():
        if (process := read_process(pid)) is not None:
            yield process
