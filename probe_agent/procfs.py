"""Processes as /proc shows them. Reading touches nothing in the process; a file costs 10 to 30 µs.

Runs beside the target: in the host server, in query workers, and in the process that attaches.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from threading import get_native_id
from time import CLOCK_BOOTTIME, clock_gettime

from probe_agent.recorder.ring.folder import start_ticks

__all__ = ["ENDED", "STATES", "Process", "Stat", "all_pids", "all_processes", "read_process"]

STATES = {
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
#: When a thread last ran, in milliseconds of the scheduler's clock; kernels are built with this file as a rule.
_LAST_RUN = re.compile(r"^se\.exec_start\s*:\s*([\d.]+)$", re.MULTILINE)
#: Of more threads, and of those that ran so lately, it is not told when they last ran.
_MAX_ASLEEP, _ASLEEP_S = 64, 1.0
#: What reading a process or thread raises once it has ended.
ENDED = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True)
class Stat:
    """/proc/PID/stat, read once."""

    start_ticks: int
    #: The fields behind the command name: the state letter is the first.
    fields: tuple[str, ...]

    @classmethod
    def parsed(cls, text: str) -> Stat:
        return cls(start_ticks(text), tuple(text.rpartition(")")[2].split()))

    @property
    def letter(self) -> str:
        return self.fields[0]

    @property
    def parent_pid(self) -> int:
        return int(self.fields[1])

    @property
    def major_faults(self) -> int:
        return int(self.fields[9])

    @property
    def cpu_s(self) -> float:
        """CPU seconds used so far, in steps of 10 ms."""
        return (int(self.fields[11]) + int(self.fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def cpu_user_s(self) -> float:
        return int(self.fields[11]) / _TICKS_A_SECOND

    @property
    def cpu_system_s(self) -> float:
        return int(self.fields[12]) / _TICKS_A_SECOND

    @property
    def processor(self) -> int:
        """The number of the one that it ran on last."""
        return int(self.fields[36])

    @property
    def num_threads(self) -> int:
        return int(self.fields[17])


@dataclass(frozen=True)
class Process:
    """Process `pid`. A method raises one of ENDED when there is no such process, or PermissionError."""

    pid: int

    @property
    def proc(self) -> str:
        return f"/proc/{self.pid}"

    def read(self, name: str) -> str:
        """Return the text of one of its files now, such as `comm` or `task/TID/wchan`."""
        with open(f"{self.proc}/{name}", "rb") as file:
            return file.read().decode("utf-8", "replace")

    @cached_property
    def stat(self) -> Stat:
        """Its state and start time when it was first looked at: PID and start time identify a process."""
        return Stat.parsed(self.read("stat"))

    def stat_now(self, tid: int | None = None) -> Stat:
        """Return the same as it is now, or that of one thread."""
        return Stat.parsed(self.read("stat" if tid is None else f"task/{tid}/stat"))

    @property
    def start_ticks(self) -> int:
        return self.stat.start_ticks

    @property
    def parent_pid(self) -> int:
        return self.stat.parent_pid

    @property
    def state(self) -> str:
        """Its state in words, when it was first looked at."""
        return STATES.get(self.stat.letter, self.stat.letter)

    @property
    def is_alive(self) -> bool:
        """Whether it was alive when it was first looked at."""
        return self.stat.letter not in "ZX"

    @property
    def age_s(self) -> float:
        return max(0.0, clock_gettime(CLOCK_BOOTTIME) - self.start_ticks / _TICKS_A_SECOND)

    @property
    def run_delay_s(self) -> float | None:
        """For how long its main thread has been ready to run without a CPU; None if the kernel does not count it."""
        try:
            return int(self.read("schedstat").split()[1]) * 1e-9
        except (FileNotFoundError, IndexError):
            return None

    def has_ended(self) -> bool:
        """Return whether it has ended or is ending, even if another process has got its number since."""
        try:
            before, now = self.stat, self.stat_now()
            if not self.read("cmdline"):  # its memory is gone
                return True
        except ENDED:
            return True
        return now.start_ticks != before.start_ticks or now.letter in "ZX"

    def status(self, tid: int | None = None) -> dict[str, str]:
        """Return /proc/PID/status as it is now, or that of one thread."""
        text = self.read("status" if tid is None else f"task/{tid}/status")
        return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)

    @cached_property
    def uid(self) -> int:
        """Effective user."""
        return int(self.status()["Uid"].split()[1])

    @cached_property
    def gid(self) -> int:
        """Effective group."""
        return int(self.status()["Gid"].split()[1])

    @property
    def file_rights(self) -> tuple[int, int, list[int]]:
        """The user, group and supplementary groups with whose rights it opens files.

        Not the owner of its folder in /proc: that is root once a process has made itself unreadable.
        """
        status = self.status()
        user, group = (int(status[field].split()[3]) for field in ("Uid", "Gid"))
        return user, group, [int(number) for number in status["Groups"].split()]

    @property
    def command(self) -> tuple[str, ...]:
        """Its command line."""
        return tuple(self.read("cmdline").split("\0")[:-1])

    @property
    def environment(self) -> dict[str, str]:
        """The variables it was started with."""
        return dict(entry.partition("=")[::2] for entry in self.read("environ").split("\0"))

    @cached_property
    def exe(self) -> str:
        """The path of its program, as it sees it."""
        return os.readlink(f"{self.proc}/exe").removesuffix(" (deleted)")

    @property
    def is_python(self) -> bool:
        """Whether its program is a Python interpreter."""
        return _PYTHON.match(os.path.basename(self.exe)) is not None

    @cached_property
    def inner_pid(self) -> int:
        """The PID that it sees itself."""
        return self.inner(self.pid)

    def inner(self, tid: int) -> int:
        """Return the number that it sees itself for one of its threads."""
        return int(self.status(tid).get("NSpid", str(tid)).split()[-1])

    def outer(self, inner: int) -> int | None:
        """Return the thread that it knows by the number `inner`; None if it has no such thread."""
        if self.inner_pid == self.pid:
            return inner if os.path.exists(f"{self.proc}/task/{inner}") else None
        for tid in self.threads():
            try:
                if self.inner(tid) == inner:
                    return tid
            except ENDED:
                continue
        return None

    def threads(self) -> list[int]:
        """Return the kernel's numbers of its threads, the main thread first."""
        return sorted(map(int, os.listdir(f"{self.proc}/task")), key=lambda tid: (tid != self.pid, tid))

    def asleep_s(self) -> dict[int, float]:
        """Return by thread for how many seconds it has not run, not even to look whether what it waits for has come.
        Threads that ran within a second are left out; empty where the kernel does not tell."""
        try:
            tids = self.threads()[:_MAX_ASLEEP]
            last = {tid: (self.stat_now(tid).processor, _last_run(self.read(f"task/{tid}/sched"))) for tid in tids}
            now = {cpu: _clock_of(cpu) for cpu in {cpu for cpu, _ in last.values()}}
        except (OSError, ValueError):
            return {}
        return {tid: asleep for tid, (cpu, at) in last.items() if (asleep := now[cpu] - at) > _ASLEEP_S}

    def catches(self, signal_number: int) -> bool:
        """Return whether it has a handler for a signal; without one, most signals would kill it."""
        return bool(int(self.status().get("SigCgt", "0"), 16) >> (signal_number - 1) & 1)

    @property
    def view(self) -> tuple[str, int, int]:
        """Identity of the file system that it sees: processes with equal views see the same files."""
        root = os.stat(f"{self.proc}/root")
        return os.readlink(f"{self.proc}/ns/mnt"), root.st_dev, root.st_ino

    def from_outside(self, path: str) -> str:
        """Return one of its paths as others can open it, with the care that `untrusted_files` takes."""
        return f"{self.proc}/root{path}"


def _clock_of(cpu: int) -> float:
    """The scheduler's clock now, in seconds. Each processor has its own, and those of a virtual machine may be seconds
    apart: so this thread goes to that one for a moment, if it may."""
    allowed = os.sched_getaffinity(0)
    with suppress(OSError):
        os.sched_setaffinity(0, {cpu})
    try:
        return _last_run(Process(os.getpid()).read(f"task/{get_native_id()}/sched"))
    finally:
        os.sched_setaffinity(0, allowed)


def _last_run(sched: str) -> float:
    """Seconds of the scheduler's clock."""
    found = _LAST_RUN.search(sched)
    if found is None:
        raise ValueError("the kernel does not tell when a thread last ran")
    return float(found[1]) * 1e-3


def read_process(pid: int) -> Process | None:
    """Return process `pid`, or None if there is none."""
    process = Process(pid)
    try:
        process.stat  # noqa: B018  # the first look
    except ENDED:
        return None
    return process


def all_pids() -> list[int]:
    """Return the PID of every process that can be seen."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def all_processes() -> Iterator[Process]:
    """Every process that can be seen."""
    for pid in all_pids():
        if (process := read_process(pid)) is not None:
            yield process
