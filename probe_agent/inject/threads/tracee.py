"""One process as /proc shows it: its threads, its mappings, its memory. Reading it touches nothing.

Runs in the attaching process.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from probe_agent import untrusted_files
from probe_agent.recorder.ring.folder import start_ticks

from .elf import Elf

__all__ = ["Mapping", "Module", "Process", "ThreadLook"]


@dataclass(frozen=True)
class Mapping:
    """A line of /proc/PID/maps."""

    start: int
    end: int
    flags: str
    offset: int
    path: str


@dataclass(frozen=True)
class ThreadLook:
    """What a thread was doing when we looked: equal looks mean that it has not moved in between."""

    state: str
    #: The number of the system call it is in, and its arguments; None outside.
    syscall: int | None
    arguments: tuple[int, ...]
    #: Where its code stands; None while it runs.
    at: int | None
    switches: int
    run_ns: int


@dataclass(frozen=True)
class Module:
    """An ELF file as mapped into the process."""

    path: str
    elf: Elf
    bias: int


class Process:
    """The process `pid`. Every method raises FileNotFoundError or ProcessLookupError once it is gone."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.proc = Path(f"/proc/{pid}")
        self._modules: dict[str, Module | None] = {}

    def status(self, tid: int | None = None) -> dict[str, str]:
        """/proc/PID/status as it is now, or that of one thread."""
        path = self.proc / "status" if tid is None else self.proc / "task" / str(tid) / "status"
        return dict(line.split(":\t", 1) for line in path.read_text().splitlines() if ":\t" in line)

    @cached_property
    def uid(self) -> int:
        """Effective user."""
        return int(self.status()["Uid"].split()[1])

    @cached_property
    def gid(self) -> int:
        """Effective group."""
        return int(self.status()["Gid"].split()[1])

    @cached_property
    def inner_pid(self) -> int:
        """The PID the process itself sees."""
        return self.inner(self.pid)

    def inner(self, tid: int) -> int:
        """The number that the process itself sees for one of its threads."""
        return int(self.status(tid).get("NSpid", str(tid)).split()[-1])

    def outer(self, inner: int) -> int | None:
        """The opposite of `inner`; None when it has no such thread."""
        for tid in self.threads():
            try:
                if self.inner(tid) == inner:
                    return tid
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended since
        return None

    @cached_property
    def ticks(self) -> int:
        """When it was started, as it was when we first looked: with the PID, who it is."""
        return start_ticks((self.proc / "stat").read_text())

    def has_ended(self) -> bool:
        """Whether it is over or just ending, and perhaps its number has been given to another one."""
        try:
            ticks, text = self.ticks, (self.proc / "stat").read_text()
            if not (self.proc / "cmdline").read_bytes():  # it has no memory any more
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        return start_ticks(text) != ticks or text.rpartition(")")[2].split()[0] in "ZX"

    @cached_property
    def maps(self) -> list[Mapping]:
        """All mappings, read once."""
        return self.maps_now()

    def maps_now(self) -> list[Mapping]:
        """All mappings."""
        mappings = []
        for line in (self.proc / "maps").read_text().splitlines():
            area, flags, offset, _, _, *path = line.split(None, 5)
            start, end = (int(part, 16) for part in area.split("-"))
            mappings.append(Mapping(start, end, flags, int(offset, 16), path[0] if path else ""))
        return mappings

    def from_outside(self, path: str) -> str:
        """A path of the process as we can open it, with the care that `untrusted_files` takes."""
        return f"{self.proc}/root{path}"

    @cached_property
    def exe(self) -> str:
        """The path of its program, as it sees it."""
        return os.readlink(self.proc / "exe").removesuffix(" (deleted)")

    @cached_property
    def code_files(self) -> list[str]:
        """The files with code in it, by path."""
        return list(
            dict.fromkeys(m.path for m in self.maps if "x" in m.flags and m.path.startswith("/") and m.flags[3] == "p")
        )

    def module(self, path: str) -> Module | None:
        """One of the `code_files`, or the program; None when it is not mapped, cannot be read or is no ELF file."""
        if path not in self._modules:
            self._modules[path] = self._load(path)
        return self._modules[path]

    def _load(self, path: str) -> Module | None:
        # A program that was deleted or replaced since is mapped under its old name with a remark behind it.
        names = (path, path + " (deleted)")
        code = next((mapping for mapping in self.maps if mapping.path in names and "x" in mapping.flags), None)
        if code is None:
            return None
        try:
            with self._file_of(code) as descriptor:
                elf = Elf(Path(f"/proc/self/fd/{descriptor}"))
        except (OSError, ValueError):
            return None  # unreadable, or not a library: nothing in it can be used
        bias = elf.bias(code.start, code.offset)
        return None if bias is None else Module(path, elf, bias)

    @contextmanager
    def _file_of(self, mapping: Mapping) -> Iterator[int]:
        """The mapped file itself where the kernel lets us, even when it was deleted or replaced since."""
        try:
            exact = os.open(self.proc / "map_files" / f"{mapping.start:x}-{mapping.end:x}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            with untrusted_files.opened(self.from_outside(mapping.path)) as descriptor:
                yield descriptor
            return
        try:
            yield exact
        finally:
            os.close(exact)

    def threads(self) -> list[int]:
        """The kernel's numbers of its threads, the main one first."""
        return sorted(map(int, os.listdir(self.proc / "task")), key=lambda tid: (tid != self.pid, tid))

    def look(self, tid: int) -> ThreadLook:
        """What one thread is doing now."""
        task = self.proc / "task" / str(tid)
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        switches = sum(int(text) for name, text in self.status(tid).items() if name.endswith("ctxt_switches"))
        run_ns = int((task / "schedstat").read_text().split()[0])
        words = (task / "syscall").read_text().split()
        if not words or words[0] == "running":
            return ThreadLook(state, None, (), None, switches, run_ns)
        syscall = int(words[0])
        arguments = tuple(int(word, 16) for word in words[1:-2])
        return ThreadLook(state, None if syscall < 0 else syscall, arguments, int(words[-1], 16), switches, run_ns)

    def looks(self) -> dict[int, ThreadLook]:
        """What its threads are doing now, the main one first; one that ends meanwhile is left out."""
        found = {}
        for tid in self.threads():
            try:
                found[tid] = self.look(tid)
            except (FileNotFoundError, ProcessLookupError):
                if tid == self.pid:
                    raise
        return found

    def read_memory(self, address: int, size: int) -> bytes:
        """Bytes of the process, without stopping it."""
        descriptor = os.open(self.proc / "mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, size, address)
        finally:
            os.close(descriptor)
        if len(data) != size:  # the kernel's answer for a process that has no memory any more
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        return data

    def write_memory(self, address: int, data: bytes) -> None:
        """Change bytes of the process, also where it may not write itself."""
        descriptor = os.open(self.proc / "mem", os.O_WRONLY | os.O_CLOEXEC)
        try:
            num_written = os.pwrite(descriptor, data, address)
        finally:
            os.close(descriptor)
        if num_written != len(data):
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
